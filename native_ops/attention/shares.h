// Threads take heads, one after the other, each with scratch memory of its own.
#pragma once

#include <atomic>
#include <vector>

#include "../common/ragged.h"
#include "strip.h"

namespace rtf {

// function(head, memory) for all heads of all sequences, the longest first; each thread has a Memory.
template <typename Memory, typename Function>
void for_heads(const RtfAttention& shape, const Sizes& sizes, float* scratch, const RtfThreads& threads,
               const Function& function) {
  std::vector<int64_t> order(shape.batch);
  for (int64_t b = 0; b < shape.batch; ++b) order[b] = b;
  if (shape.lengths)
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return shape.lengths[a] > shape.lengths[b]; });
  const int64_t n = shape.batch * shape.heads, parts = std::max<int64_t>(1, std::min<int64_t>(threads.n_threads, n));
  const int64_t size = size_of<Memory>(shape, sizes);
  std::atomic<int64_t> next{0};
  run_tasks(threads, parts, [&](int64_t part) {
    Arena arena(scratch, part, size);
    const Memory memory(arena, shape, sizes);
    for (int64_t index = next++; index < n; index = next++)
      function(Head{shape, sizes, order[index / shape.heads], index % shape.heads}, memory);
  });
}

}  // namespace rtf
