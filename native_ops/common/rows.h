// Rows of a matrix, distributed over threads; sums over them that do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ragged.h"

namespace rtf {

// Below this many numbers, waking a thread takes longer than the work.
constexpr int64_t kNumbersPerThread = 1 << 14;

// Calls function(first, last) for ranges of rows; few numbers stay on this thread.
template <typename Function>
void run_rows(const RtfThreads& threads, int64_t rows, int64_t width, const Function& function) {
  if (rows == 0 || width == 0) return;
  const int64_t useful = std::max<int64_t>(1, rows * width / kNumbersPerThread);
  const int64_t parts = std::min<int64_t>(std::min<int64_t>(threads.n_threads, rows), useful);
  run_tasks(threads, parts, [&](int64_t part) { function(part * rows / parts, (part + 1) * rows / parts); });
}

// Blocks of rows with partial sums of their own, which are added in their order.
inline int64_t sum_blocks(int64_t rows) { return std::min<int64_t>(64, std::max<int64_t>(1, rows / 32)); }

// Calls function(first, last, block) for the rows of each block.
template <typename Function>
void run_blocks(const RtfThreads& threads, int64_t rows, int64_t width, const Function& function) {
  const int64_t blocks = sum_blocks(rows);
  run_rows(threads, blocks, (rows + blocks - 1) / blocks * width, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block)
      function(block * rows / blocks, (block + 1) * rows / blocks, block);
  });
}

// to[u] = the sum of parts[block, u] over the blocks.
inline void add_blocks(int64_t blocks, int64_t width, const float* parts, float* to) {
  std::copy(parts, parts + width, to);
  for (int64_t block = 1; block < blocks; ++block)
    for (int64_t u = 0; u < width; ++u) to[u] += parts[block * width + u];
}

}  // namespace rtf
