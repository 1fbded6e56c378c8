// Products of a block of rows with a matrix that fits into a core's cache. Rows of the left factor may be columns of
// what is stored: sums of kMaxRows rows and up to 4 vectors of columns stay in registers over the whole depth.
#pragma once

#include <algorithm>

#include "../common/packed_gemm.h"

namespace rtf {

using Left = Strided;

// The right factor [depth, columns], with columns in whole vectors: adjacent rows, or the first columns of
// what pack_columns wrote.
struct Right {
  const float* data;
  int64_t depth, columns;
  int64_t packed;  // how many columns were packed; 0: rows
};

// Copies vectors [n, size] to rows of whole vectors, times a factor.
inline void pack_rows(const float* from, int64_t step, int64_t n, int64_t size, float factor, float* to) {
  const int64_t width = whole_vectors(size);
  for (int64_t t = 0; t < n; ++t, from += step, to += width)
    by_vectors(size, [&](int64_t at, auto whole, int lanes) {
      store(to + at, splat(factor) * load_n<decltype(whole)::value>(from + at, lanes));
    });
}

// Packs vectors [n, size] as the columns of a matrix [size, n]: panel by panel, each with all rows.
inline void pack_columns(const float* from, int64_t step, int64_t n, int64_t size, float* to) {
  for (int64_t begin = 0; begin < n; begin += kPanel) {
    const int64_t count = std::min<int64_t>(kPanel, n - begin), width = whole_vectors(count);
    float* panel = to + begin * size;
    for (int64_t column = 0; column < count; ++column)
      for (int64_t k = 0; k < size; ++k) panel[k * width + column] = from[(begin + column) * step + k];
    for (int64_t k = 0; k < size; ++k) std::fill(panel + k * width + count, panel + (k + 1) * width, 0.0f);
  }
}

template <int kRows, int kWidth>
inline __attribute__((always_inline)) void multiply_rows(const Left& left, const Columns& right, int64_t depth,
                                                         float* to, int64_t to_step, bool add) {
  Vec sums[kRows][kWidth];
  multiply_block<kRows, kWidth>(depth, left, right, FromZero(), sums);
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) {
      float* at = to + row * to_step + v * kLanes;
      store(at, add ? load(at) + sums[row][v] : sums[row][v]);
    }
}

template <int kWidth>
void multiply_columns(const Left& left, int64_t n_rows, const Columns& right, int64_t depth, float* to, int64_t to_step,
                      bool add) {
  for_row_blocks(
      n_rows, [&](auto count, int64_t first) __attribute__((always_inline)) {
        const Left rows{left.data + first * left.row_step, left.row_step, left.depth_step};
        multiply_rows<count, kWidth>(rows, right, depth, to + first * to_step, to_step, add);
      });
}

// to [n_rows, right.columns] = or += left [n_rows, depth] * right.
inline void multiply(const Left& left, int64_t n_rows, const Right& right, float* to, int64_t to_step, bool add) {
  for (int64_t column = 0; column < right.columns; column += kPanel) {
    const int64_t width = std::min<int64_t>(kPanel, right.columns - column);
    const Columns columns{right.data + (right.packed ? column * right.depth : column),
                          right.packed ? std::min<int64_t>(kPanel, right.packed - column) : right.columns};
    with_constant<kVectors>(width / kLanes, [&](auto vectors) {
      multiply_columns<vectors>(left, n_rows, columns, right.depth, to + column, to_step, add);
    });
  }
}

}  // namespace rtf
