#include <algorithm>
#include <cmath>
#include <vector>

#include "../common/ragged.h"
#include "align.h"

namespace rtf {
namespace {

// Returns the best path of one sequence. last_arcs [frames, states]: the last edge of the best path to each state.
void best_path(const RtfScores& scores, const RtfAcceptors& acceptors, int32_t b, int32_t* last_arcs, int32_t* path,
               float* total) {
  const int64_t states = acceptors.num_states[b], frames = scores.lengths[b];
  const int32_t* arcs = acceptors.arcs + b * acceptors.edges * 3;
  const float* costs = acceptors.costs + b * acceptors.edges;
  std::vector<float> now(states, -INFINITY), next(states);
  now[0] = 0.0f;
  for (int64_t t = 0; t < frames; ++t) {
    const float* x = scores.values + (t * scores.batch + b) * scores.classes;
    int32_t* last = last_arcs + t * acceptors.states;
    std::fill(next.begin(), next.end(), -INFINITY);
    for (int64_t i = 0; i < acceptors.edges; ++i) {
      const int32_t* arc = arcs + 3 * i;
      const int32_t to = arc[1];
      if (arc[2] < 0) continue;
      const float way = now[arc[0]] + (x[arc[2]] - costs[i]);
      if (way > next[to] || way != way) {  // NaN propagates
        next[to] = way;
        last[to] = static_cast<int32_t>(i);
      }
    }
    std::swap(now, next);
  }
  *total = now[states - 1];
  if (!std::isfinite(*total)) return;
  int32_t state = static_cast<int32_t>(states - 1);
  for (int64_t t = frames - 1; t >= 0; --t) {
    const int32_t* arc = arcs + 3 * last_arcs[t * acceptors.states + state];
    path[t * scores.batch + b] = arc[2];
    state = arc[0];
  }
}

// Numbers in last_arcs for one sequence.
int64_t n_last_arcs(int64_t frames, const RtfAcceptors& acceptors) { return frames * acceptors.states; }

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_acceptor_best_scratch_size(int64_t frames, const RtfAcceptors* acceptors, int n_threads) {
  return n_threads * rtf::n_last_arcs(frames, *acceptors);
}

void rtf_acceptor_best_f32(const RtfScores* scores, const RtfAcceptors* acceptors, int32_t* path, float* total,
                           int32_t* scratch, const RtfThreads* threads) {
  if (scores->batch == 0) return;
  const rtf::Shares shares({scores->frames, scores->batch, scores->lengths, false}, threads->n_threads);
  rtf::run_tasks(*threads, shares.count(), [&](int64_t index) {
    int32_t* last_arcs = scratch + index * rtf::n_last_arcs(scores->frames, *acceptors);
    for (int32_t b : shares.share(index)) {
      for (int64_t t = 0; t < scores->frames; ++t) path[t * scores->batch + b] = 0;
      rtf::best_path(*scores, *acceptors, b, last_arcs, path, total + b);
    }
  });
}
}
