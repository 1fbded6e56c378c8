#include <algorithm>
#include <vector>

#include "../common/ragged.h"
#include "align.h"
#include "chain.h"

namespace rtf {
namespace {

struct Arc {
  int32_t from, to, place;  // index of its class among the used classes
  float m, e;               // weight
};

// Forward-backward for one sequence. Frame t of alpha holds the states before frame t is read.
class Acceptor {
 public:
  Acceptor(const RtfScores& scores, const RtfAcceptors& acceptors, int32_t b)
      : scores_(scores), b_(b), states_(acceptors.num_states[b]) {
    std::vector<int32_t> place(scores.classes, -1);
    for (int64_t i = 0; i < acceptors.edges; ++i) {
      const int32_t* arc = acceptors.arcs + (b * acceptors.edges + i) * 3;
      if (arc[2] < 0) continue;
      if (place[arc[2]] < 0) {
        place[arc[2]] = static_cast<int32_t>(used_.size());
        used_.push_back(arc[2]);
      }
      const Scaled weight = scaled_exp(splat(-acceptors.costs[b * acceptors.edges + i]));
      arcs_.push_back({arc[0], arc[1], place[arc[2]], weight.m[0], weight.e[0]});
    }
    used_size_ = static_cast<int64_t>(used_.size());
    used_.resize(whole_vectors(used_size_) + kLanes);
    emitted_m_.resize(used_.size());
    emitted_e_.resize(used_.size());
    ahead_.resize(arcs_.size());
    sums_.resize(used_size_);
  }

  // alpha: [(frames + 1) * states], m and e interleaved
  void run(double* alpha, float* posteriors, float* total) {
    const int64_t frames = scores_.lengths[b_], n = scores_.classes;
    std::vector<ScaledDouble> now(states_), next(states_);
    now[0] = {1.0, 0.0};
    for (int64_t t = 0; t < frames; ++t) {
      keep(now, alpha + t * 2 * states_);
      emit(t);
      step(now, &next, &Arc::from, &Arc::to);
      std::swap(now, next);
    }
    const ScaledDouble sum = now[states_ - 1];
    *total = static_cast<float>(sum.log());
    if (sum.is_none()) return;
    std::fill(now.begin(), now.end(), ScaledDouble());
    now[states_ - 1] = {1.0, 0.0};
    for (int64_t t = frames - 1; t >= 0; --t) {
      emit(t);
      step(now, &next, &Arc::to, &Arc::from);
      add_posteriors(alpha + t * 2 * states_, sum, posteriors + (t * scores_.batch + b_) * n);
      std::swap(now, next);
    }
  }

 private:
  void keep(const std::vector<ScaledDouble>& states, double* alpha) const {
    for (int64_t s = 0; s < states_; ++s) {
      alpha[2 * s] = states[s].m;
      alpha[2 * s + 1] = states[s].e;
    }
  }

  void emit(int64_t t) {
    const float* row = scores_.values + (t * scores_.batch + b_) * scores_.classes;
    for (int64_t i = 0; i < used_size_; i += kLanes) {
      Vec x;
      for (int lane = 0; lane < kLanes; ++lane) x[lane] = row[used_[i + lane]];
      const Scaled emitted = scaled_exp(x);
      store(&emitted_m_[i], emitted.m);
      store(&emitted_e_[i], emitted.e);
    }
  }

  // next[to] = sum of now[from] * arc over all arcs; the contribution of each arc is left in ahead_.
  void step(const std::vector<ScaledDouble>& now, std::vector<ScaledDouble>* next, int32_t Arc::*from,
            int32_t Arc::*to) {
    std::fill(next->begin(), next->end(), ScaledDouble());
    for (size_t i = 0; i < arcs_.size(); ++i) {
      const Arc& arc = arcs_[i];
      const ScaledDouble& state = now[arc.*from];
      ahead_[i].m = state.m * emitted_m_[arc.place] * arc.m;
      ahead_[i].e = state.e + emitted_e_[arc.place] + arc.e;
      double& top = (*next)[arc.*to].e;
      top = std::max(top, ahead_[i].e);
    }
    for (size_t i = 0; i < arcs_.size(); ++i) {
      ScaledDouble& goal = (*next)[arcs_[i].*to];
      goal.m += ahead_[i].m * ScaledDouble::power(ahead_[i].e - goal.e);
    }
    for (ScaledDouble& state : *next) state.normalise();
  }

  void add_posteriors(const double* alpha, const ScaledDouble& total, float* row) {
    std::fill(sums_.begin(), sums_.end(), 0.0);
    for (size_t i = 0; i < arcs_.size(); ++i) {
      const int32_t from = arcs_[i].from;
      const double e = std::min(alpha[2 * from + 1] + ahead_[i].e - total.e, 2.0) - 2.0;
      sums_[arcs_[i].place] += alpha[2 * from] * ahead_[i].m / total.m * ScaledDouble::power(e) * 4.0;
    }
    for (int64_t i = 0; i < used_size_; ++i) row[used_[i]] = static_cast<float>(sums_[i]);
  }

  const RtfScores& scores_;
  int32_t b_;
  int64_t states_, used_size_;
  std::vector<Arc> arcs_;
  std::vector<int32_t> used_;
  std::vector<float> emitted_m_, emitted_e_;
  std::vector<ScaledDouble> ahead_;
  std::vector<double> sums_;
};

// The scratch memory of a thread.
struct Memory {
  double* alpha;  // [frames + 1, states, 2]

  Memory(Arena& arena, int64_t frames, const RtfAcceptors& acceptors)
      : alpha(reinterpret_cast<double*>(arena.take(4 * (frames + 1) * acceptors.states))) {}
};

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_acceptor_scratch_size(int64_t frames, const RtfAcceptors* acceptors, int n_threads) {
  return rtf::scratch_of(rtf::size_of<rtf::Memory>(frames, *acceptors), n_threads);
}

void rtf_acceptor_soft_f32(const RtfScores* scores, const RtfAcceptors* acceptors, float* posteriors, float* total,
                           float* scratch, const RtfThreads* threads) {
  if (scores->batch == 0) return;
  const int64_t n = scores->classes, step = scores->batch * n;
  const rtf::Shares shares({scores->frames, scores->batch, scores->lengths, false}, threads->n_threads);
  const int64_t size = rtf::size_of<rtf::Memory>(scores->frames, *acceptors);
  rtf::run_tasks(*threads, shares.count(), [&](int64_t index) {
    rtf::Arena arena(scratch, index, size);
    const rtf::Memory memory(arena, scores->frames, *acceptors);
    for (int32_t b : shares.share(index)) {
      for (int64_t t = 0; t < scores->frames; ++t) std::fill_n(posteriors + t * step + b * n, n, 0.0f);
      rtf::Acceptor(*scores, *acceptors, b).run(memory.alpha, posteriors, total + b);
    }
  });
}
}
