#include <algorithm>
#include <cmath>

#include "../common/ragged.h"
#include "align.h"
#include "chain.h"
#include "softmax.h"
#include "viterbi.h"

namespace rtf {
namespace {

Ragged ragged_of(const RtfScores& scores) { return {scores.frames, scores.batch, scores.lengths, false}; }

SequenceScores sequence(const RtfScores& scores, int32_t b, const float* offset) {
  return {scores.lengths[b], scores.values + b * scores.classes, scores.batch * scores.classes, offset};
}

// Calls function(b, space) for all sequences, on all threads.
template <typename Function>
void for_each_sequence(const RtfScores& scores, int64_t states, float* scratch, const RtfThreads& threads,
                       const Function& function) {
  if (scores.batch == 0) return;
  const Shares shares(ragged_of(scores), threads.n_threads);
  const int64_t size = size_of<ChainSpace>(scores.frames, states);
  run_tasks(threads, shares.count(), [&](int64_t index) {
    Arena arena(scratch, index, size);
    ChainSpace space(arena, scores.frames, states);
    for (int32_t b : shares.share(index)) function(b, &space);
  });
}

Chain chain_of(const RtfChains& chains, int32_t b, ChainSpace* space) {
  const int64_t first = b * chains.states, n = chains.num_states[b];
  std::copy(chains.classes + first, chains.classes + first + n, space->classes);
  for (int64_t s = 0; s < n; ++s) {
    space->loop[s] = chains.loop[first + s] ? 0.0f : kNone;
    space->skip[s] = chains.skip[first + s] ? 0.0f : kNone;
  }
  return Chain(n, chains.optional_ends, space);
}

Chain ctc_chain(const RtfCtc& ctc, int32_t b, ChainSpace* space) {
  const int32_t* labels = ctc.labels + b * ctc.max_labels;
  const int64_t n = 2 * static_cast<int64_t>(ctc.label_lengths[b]) + 1;
  for (int64_t s = 0; s < n; ++s) {
    const bool is_label = s % 2 == 1;
    space->classes[s] = is_label ? labels[s / 2] : ctc.blank;
    space->loop[s] = is_label && !ctc.label_loop ? kNone : 0.0f;
    const bool may_skip = is_label && s > 1 && !(ctc.label_loop && labels[s / 2] == labels[s / 2 - 1]);
    space->skip[s] = may_skip ? 0.0f : kNone;
  }
  return Chain(n, true, space);
}

// Minimum number of frames: one per label, plus one for the blank between equal labels.
int64_t needed_frames(const RtfCtc& ctc, int32_t b) {
  const int32_t* labels = ctc.labels + b * ctc.max_labels;
  int64_t needed = ctc.label_lengths[b];
  for (int64_t i = 1; ctc.label_loop && i < ctc.label_lengths[b]; ++i) needed += labels[i] == labels[i - 1];
  return needed;
}

// Loss and gradient of one sequence.
float ctc_sequence(const RtfScores& scores, const RtfCtc& ctc, int32_t b, float* gradient, ChainSpace* space) {
  const int64_t n = scores.classes, frames = scores.lengths[b], step = scores.batch * n;
  SequenceScores own = sequence(scores, b, nullptr);
  float* row = gradient + b * n;
  if (!ctc.normalized) {
    own.offset = space->offset;
    for (int64_t t = 0; t < frames; ++t)
      space->offset[t] = exponentials(own.frame(t), n, row + t * step, space->factor + t);
  }
  const auto clear = [&](bool softmax) {
    for (int64_t t = 0; t < frames; ++t) {
      if (softmax)
        scale_row(space->factor[t], n, row + t * step);
      else
        std::fill(row + t * step, row + t * step + n, 0.0f);
    }
  };
  if (needed_frames(ctc, b) > frames) {
    clear(ctc.softmax_without_alignment && !ctc.normalized);
    return 0.0f;
  }
  const Chain chain = ctc_chain(ctc, b, space);
  const ScaledDouble total = chain.forward(own);
  if (total.is_none()) {
    clear(false);
    return ctc.normalized ? 0.0f : INFINITY;
  }
  if (ctc.normalized) clear(false);
  chain.backward(own, total, [&](int64_t t) {
    if (!ctc.normalized) scale_row(space->factor[t], n, row + t * step);
    chain.add_to_classes(-1.0f, row + t * step);
  });
  return static_cast<float>(-total.log());
}

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_chain_scratch_size(int64_t frames, int64_t states, int n_threads) {
  return rtf::scratch_of(rtf::size_of<rtf::ChainSpace>(frames, states), n_threads);
}

void rtf_chain_soft_f32(const RtfScores* scores, const RtfChains* chains, float* posteriors, float* total,
                        float* scratch, const RtfThreads* threads) {
  const int64_t n = scores->classes, step = scores->batch * n;
  rtf::for_each_sequence(*scores, chains->states, scratch, *threads, [&](int32_t b, rtf::ChainSpace* space) {
    const rtf::SequenceScores own = rtf::sequence(*scores, b, nullptr);
    const rtf::Chain chain = rtf::chain_of(*chains, b, space);
    for (int64_t t = 0; t < scores->frames; ++t) std::fill_n(posteriors + t * step + b * n, n, 0.0f);
    const rtf::ScaledDouble sum = chain.forward(own);
    total[b] = static_cast<float>(sum.log());
    if (sum.is_none()) return;
    chain.backward(own, sum, [&](int64_t t) { chain.add_to_classes(1.0f, posteriors + t * step + b * n); });
  });
}

void rtf_chain_best_f32(const RtfScores* scores, const RtfChains* chains, int32_t* path, float* total, float* scratch,
                        const RtfThreads* threads) {
  rtf::for_each_sequence(*scores, chains->states, scratch, *threads, [&](int32_t b, rtf::ChainSpace* space) {
    const rtf::Chain chain = rtf::chain_of(*chains, b, space);
    for (int64_t t = 0; t < scores->frames; ++t) path[t * scores->batch + b] = 0;
    total[b] = rtf::best_path(chain, rtf::sequence(*scores, b, nullptr), space, path + b, scores->batch);
  });
}

void rtf_ctc_f32(const RtfScores* scores, const RtfCtc* ctc, float* loss, float* gradient, float* scratch,
                 const RtfThreads* threads) {
  const rtf::Ragged ragged = rtf::ragged_of(*scores);
  rtf::for_each_sequence(*scores, 2 * ctc->max_labels + 1, scratch, *threads, [&](int32_t b, rtf::ChainSpace* space) {
    loss[b] = rtf::ctc_sequence(*scores, *ctc, b, gradient, space);
    rtf::zero_padding(ragged, b, scores->classes, gradient);
  });
}
}
