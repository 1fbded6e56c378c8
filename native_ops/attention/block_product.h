// Products of a block of rows with a matrix that fits into a core's cache. Rows of the left factor may be columns of
// what is stored: sums of kMaxRows rows and up to 4 vectors of columns stay in registers over the whole depth.
#pragma once

#include <algorithm>

#include "../common/packed_gemm.h"

namespace rtf {

inline int64_t whole_vectors(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// The left factor: element (row, k) is data[row * row_step + k * depth_step].
struct Left {
  const float* data;
  int64_t row_step, depth_step;
};

// The right factor [depth, columns], with columns in whole vectors: rows behind each other, or the first columns of
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
inline void multiply_block(const float* a, const Left& left, const float* b, int64_t b_step, int64_t depth, float* to,
                           int64_t to_step, bool add) {
  Vec sums[kRows][kWidth];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) sums[row][v] = Vec{};
#pragma GCC unroll 2
  for (int64_t k = 0; k < depth; ++k, a += left.depth_step, b += b_step) {
    Vec factors[kWidth];
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) factors[v] = load(b + v * kLanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Vec value = splat(a[row * left.row_step]);
#pragma GCC unroll 4
      for (int v = 0; v < kWidth; ++v) sums[row][v] += value * factors[v];
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) {
      float* at = to + row * to_step + v * kLanes;
      store(at, add ? load(at) + sums[row][v] : sums[row][v]);
    }
}

template <int kWidth>
void multiply_columns(const Left& left, int64_t n_rows, const float* b, int64_t b_step, int64_t depth, float* to,
                      int64_t to_step, bool add) {
  int64_t pieces = (n_rows + kMaxRows - 1) / kMaxRows;
  for (int64_t at = 0, size; at < n_rows; at += size, --pieces) {
    size = (n_rows - at + pieces - 1) / pieces;
    const float* a = left.data + at * left.row_step;
    float* y = to + at * to_step;
    switch (size) {
      case 1: multiply_block<1, kWidth>(a, left, b, b_step, depth, y, to_step, add); break;
      case 2: multiply_block<2, kWidth>(a, left, b, b_step, depth, y, to_step, add); break;
#if defined(__AVX512F__)
      case 3: multiply_block<3, kWidth>(a, left, b, b_step, depth, y, to_step, add); break;
      case 4: multiply_block<4, kWidth>(a, left, b, b_step, depth, y, to_step, add); break;
      case 5: multiply_block<5, kWidth>(a, left, b, b_step, depth, y, to_step, add); break;
      case 6: multiply_block<6, kWidth>(a, left, b, b_step, depth, y, to_step, add); break;
#endif
    }
  }
}

// to [n_rows, right.columns] = or += left [n_rows, depth] * right.
inline void multiply(const Left& left, int64_t n_rows, const Right& right, float* to, int64_t to_step, bool add) {
  for (int64_t column = 0; column < right.columns; column += kPanel) {
    const int64_t width = std::min<int64_t>(kPanel, right.columns - column);
    const float* b = right.data + (right.packed ? column * right.depth : column);
    const int64_t b_step = right.packed ? std::min<int64_t>(kPanel, right.packed - column) : right.columns;
    switch (width / kLanes) {
      case 1: multiply_columns<1>(left, n_rows, b, b_step, right.depth, to + column, to_step, add); break;
      case 2: multiply_columns<2>(left, n_rows, b, b_step, right.depth, to + column, to_step, add); break;
      case 3: multiply_columns<3>(left, n_rows, b, b_step, right.depth, to + column, to_step, add); break;
      case 4: multiply_columns<4>(left, n_rows, b, b_step, right.depth, to + column, to_step, add); break;
    }
  }
}

}  // namespace rtf
