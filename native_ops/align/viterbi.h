// The best path through the chain of one sequence.
#pragma once

#include "chain.h"

namespace rtf {

// Takes the better path; the first one wins ties. NaN propagates.
inline void improve(Vec way, float number, Vec* best, Vec* origin) {
  const auto better = (way > *best) | (way != way);
  *best = better ? way : *best;
  *origin = better ? splat(number) : *origin;
}

// Writes the class of each frame to path[t * step]; returns the score of the path, -infinity if there is none. The
// array of alpha holds the scores in m and the number of states that the best path advanced in e.
inline float best_path(const Chain& chain, const SequenceScores& scores, ChainSpace* space, int32_t* path,
                       int64_t step) {
  const int64_t row = row_size(chain.states()), frames = scores.frames, n = chain.states();
  if (frames == 0) return chain.may_be_empty() ? 0.0f : -INFINITY;
  if (n == 0) return -INFINITY;
  float *alpha = space->alpha_m, *origins = space->alpha_e;
  for (int64_t t = 0; t <= frames; ++t) std::fill(alpha + t * row, alpha + t * row + kLanes, -INFINITY);
  for (int64_t t = 0; t < frames; ++t)
    for (int64_t s = 0; s < chain.width(); s += kLanes) {
      const int64_t at = t * row + kLanes + s, from = at - row;
      Vec best = splat(-INFINITY), origin = splat(0.0f);
      if (t == 0) {
        for (int i = 0; i < kLanes; ++i) best[i] = chain.may_begin(s + i) ? 0.0f : -INFINITY;
      } else {
        const Vec forbidden = splat(-INFINITY);
        best = load(space->loop + s) < splat(0.0f) ? forbidden : load(alpha + from);
        improve(load(alpha + from - 1), 1.0f, &best, &origin);
        improve(load(space->skip + s) < splat(0.0f) ? forbidden : load(alpha + from - 2), 2.0f, &best, &origin);
      }
      store(alpha + at, best + chain.emission(scores, t, s));
      store(origins + at, origin);
    }
  const float* last = alpha + (frames - 1) * row + kLanes;
  int64_t state = n - 1;
  if (n > 1 && chain.may_end(n - 2) && last[n - 2] > last[n - 1]) state = n - 2;
  const float total = last[state];
  if (!std::isfinite(total)) return total;
  for (int64_t t = frames - 1; t >= 0; --t) {
    path[t * step] = space->classes[state];
    state -= static_cast<int64_t>(origins[t * row + kLanes + state]);
  }
  return total;
}

}  // namespace rtf
