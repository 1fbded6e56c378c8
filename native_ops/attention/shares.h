// Which products a head takes, and which threads take heads: one after the other, each with scratch memory of its own.
#pragma once

#include <atomic>
#include <vector>

#include "../common/ragged.h"
#include "products.h"
#include "rounded_products.h"
#include "strip.h"

namespace rtf {

template <typename Kind>
struct With {
  using Products = Kind;
};

// function(With<the products of an attention>()).
template <typename Function>
auto with_products(const RtfAttention& shape, const Function& function) {
#if RTF_TILES
  if (shape.rounded && tiles_work()) return function(With<RoundedProducts<TileProduct<1>>>());
#endif
#if RTF_PAIRS
  if (shape.rounded) return function(With<RoundedProducts<PairProduct>>());
#endif
  return function(With<VectorProducts>());
}

// function(head, memory) for all heads of all sequences, the longest first; each thread has a Memory.
template <typename Memory, typename Function>
void for_heads(const RtfAttention& shape, float* scratch, const RtfThreads& threads, const Function& function) {
  const Sizes sizes(shape, Memory::Products::kSizes);
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
    Memory memory(arena, shape, sizes);
    const typename Memory::Products::Ready ready;
    for (int64_t index = next++; index < n; index = next++)
      function(Head{shape, sizes, order[index / shape.heads], index % shape.heads}, memory);
  });
}

// Floats of scratch memory for at most this many threads.
template <typename Memory>
int64_t scratch_size(const RtfAttention& shape, int n_threads) {
  return scratch_of(size_of<Memory>(shape, Sizes(shape, Memory::Products::kSizes)), n_threads);
}

}  // namespace rtf
