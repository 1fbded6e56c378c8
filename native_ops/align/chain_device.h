// Chains of states as the GPU kernels see them: given state by state, or built from the labels of CTC.
#pragma once

#include <algorithm>
#include <vector>

#include "align.h"
#include "live.h"
#include "number.h"
#include "staging.h"

namespace rtf {

struct DeviceChains {
  int64_t frames, batch, classes, states;  // states: maximum over all sequences
  const float* values;                     // [frames, batch, classes]
  const float* offset;                     // [frames, batch], subtracted from the values; or null
  const int32_t* lengths;
  const int32_t* symbols;      // [batch, width]: classes of states, or labels
  const int32_t* counts;       // number of them per sequence
  const int32_t* strides;      // [batch]: the most states that a frame advances; null for CTC
  const uint8_t *loop, *skip;  // [batch, width]; null for CTC
  int64_t width;
  int32_t blank;
  int label_loop, optional_ends;

  __device__ bool is_ctc() const { return loop == nullptr; }

  __device__ int num_states(int b) const { return is_ctc() ? 2 * counts[b] + 1 : counts[b]; }

  __device__ int32_t class_of(int b, int s) const {
    if (!is_ctc()) return symbols[b * width + s];
    return s % 2 ? symbols[b * width + s / 2] : blank;
  }

  __device__ bool may_loop(int b, int s) const {
    return is_ctc() ? s % 2 == 0 || label_loop : loop[b * width + s] != 0;
  }

  __device__ bool may_skip_to(int b, int s) const {
    if (!is_ctc()) return skip[b * width + s] != 0;
    if (s % 2 == 0 || s < 2) return false;
    return !label_loop || symbols[b * width + s / 2] != symbols[b * width + s / 2 - 1];
  }

  __device__ LiveChain live(int b) const {
    return {num_states(b), lengths[b], optional_ends ? 2 : 1, is_ctc() ? 2 : strides[b]};
  }

  __device__ bool may_be_empty(int n) const { return n <= (optional_ends ? 1 : 0); }

  __device__ float score(int b, int64_t t, int32_t label) const {
    const int64_t row = t * batch + b;
    const float x = __ldg(values + row * classes + label);
    return offset ? x - __ldg(offset + row) : x;
  }
};

constexpr int kFramesAhead = 4;

// Calls step(t, s, its score) for all frames, from the first or from the last, and all live states of the thread, with
// a barrier after each frame. The scores of a thread's first state, usually its only one, are prefetched some frames
// ahead.
template <typename Step>
__device__ void walk_chain(const DeviceChains& chains, int b, const LiveChain& live, bool forward, const Step& step) {
  const int frames = live.frames, mine = threadIdx.x;
  const auto frame = [&](int i) { return forward ? i : frames - 1 - i; };
  const int32_t label = mine < live.states ? chains.class_of(b, mine) : 0;
  const auto read = [&](int i) {
    return i < frames && live.at(frame(i)).has(mine) ? chains.score(b, frame(i), label) : 0.0f;
  };
  float ahead[kFramesAhead];
#pragma unroll
  for (int j = 0; j < kFramesAhead; ++j) ahead[j] = read(j);
  for (int begin = 0; begin < frames; begin += kFramesAhead) {
#pragma unroll
    for (int j = 0; j < kFramesAhead; ++j) {
      const int i = begin + j;
      if (i < frames) {
        const float x = ahead[j];
        ahead[j] = read(i + kFramesAhead);
        const LiveStates now = live.at(frame(i));
        if (now.has(mine)) step(frame(i), mine, x);
        for (int s = mine + blockDim.x; s < now.end; s += blockDim.x)
          if (s >= now.first) step(frame(i), s, chains.score(b, frame(i), chains.class_of(b, s)));
        __syncthreads();
      }
    }
  }
}

inline DeviceChains device_chains(const RtfScores& scores, const RtfChains& chains, Staging* staging) {
  DeviceChains to{scores.frames, scores.batch, scores.classes, chains.states, scores.values};
  const int64_t all = scores.batch * chains.states;
  std::vector<int32_t> strides;
  for (int64_t b = 0; b < scores.batch; ++b) {
    const uint8_t *skip = chains.skip + b * chains.states, *end = skip + chains.num_states[b];
    strides.push_back(std::find_if(skip, end, [](uint8_t may) { return may != 0; }) == end ? 1 : 2);
  }
  to.lengths = staging->add(scores.lengths, scores.batch);
  to.symbols = staging->add(chains.classes, all);
  to.counts = staging->add(chains.num_states, scores.batch);
  to.strides = staging->add(strides.data(), scores.batch);
  to.loop = staging->add_bytes(chains.loop, all);
  to.skip = staging->add_bytes(chains.skip, all);
  to.width = chains.states;
  to.optional_ends = chains.optional_ends;
  return to;
}

inline DeviceChains device_ctc(const RtfScores& scores, const RtfCtc& ctc, Staging* staging) {
  DeviceChains to{scores.frames, scores.batch, scores.classes, 2 * ctc.max_labels + 1, scores.values};
  to.lengths = staging->add(scores.lengths, scores.batch);
  to.symbols = staging->add(ctc.labels, scores.batch * ctc.max_labels);
  to.counts = staging->add(ctc.label_lengths, scores.batch);
  to.width = ctc.max_labels;
  to.blank = ctc.blank;
  to.label_loop = ctc.label_loop;
  to.optional_ends = 1;
  return to;
}

// Number of 32-bit integers in the staging memory, for either kind.
inline int64_t staged_chains(int64_t batch, int64_t states) {
  return batch * (3 + states) + 2 * (batch * states / 4 + 1);
}

}  // namespace rtf
