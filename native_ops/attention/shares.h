// Threads take heads, one after the other, each with scratch memory of its own.
#pragma once

#include <atomic>
#include <vector>

#include "../common/ragged.h"
#include "strip.h"

namespace rtf {

// Scratch memory of a thread starts at a whole vector.
inline int64_t scratch_of_threads(int64_t floats, int64_t n_threads) {
  return n_threads * whole_vectors(floats) + kLanes;
}

// function(head, scratch) for all heads of all sequences, the longest first.
template <typename Function>
void for_heads(const RtfAttention& shape, const Sizes& sizes, int64_t floats, float* scratch, const RtfThreads& threads,
               const Function& function) {
  std::vector<int64_t> order(shape.batch);
  for (int64_t b = 0; b < shape.batch; ++b) order[b] = b;
  if (shape.lengths)
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return shape.lengths[a] > shape.lengths[b]; });
  const int64_t n = shape.batch * shape.heads, parts = std::max<int64_t>(1, std::min<int64_t>(threads.n_threads, n));
  std::atomic<int64_t> next{0};
  run_tasks(threads, parts, [&](int64_t part) {
    float* own = align_up(scratch) + part * whole_vectors(floats);
    for (int64_t index = next++; index < n; index = next++)
      function(Head{shape, sizes, order[index / shape.heads], index % shape.heads}, own);
  });
}

}  // namespace rtf
