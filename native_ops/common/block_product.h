// The product in registers of which all products by vectors consist: some rows of one factor times some vectors of
// columns of the other, with the sums in registers over the whole depth. What differs between its users is where the
// factors lie, and where the sums begin and end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "vector.h"

namespace rtf {

// Rows whose sums stay in registers: 4 vectors each, plus 4 of the matrix and one of the row, of 32 or 16 registers.
#if defined(__AVX512F__)
constexpr int kMaxRows = 6;
#else
constexpr int kMaxRows = 2;
#endif

// A left factor: scattered rows.
template <int kRows>
struct ScatteredRows {
  const float* rows[kRows];

  explicit ScatteredRows(const float* const* from) { std::copy(from, from + kRows, rows); }
  float operator()(int row, int64_t k) const { return rows[row][k]; }
};

// A left factor: element (row, k) is data[row * row_step + k * depth_step], so that rows may be columns of what is
// stored.
struct Strided {
  const float* data;
  int64_t row_step, depth_step;

  float operator()(int row, int64_t k) const { return data[row * row_step + k * depth_step]; }
};

// A right factor: adjacent vectors of rows that are `step` floats apart.
struct Columns {
  const float* data;
  int64_t step;

  Vec operator()(int64_t k, int v) const { return load(data + k * step + v * kLanes); }
};

// Sums that begin with 0.
struct FromZero {
  Vec operator()(int, int) const { return Vec{}; }
};

// sums[row][v] = start(row, v) + the sum over k of left(row, k) * right(k, v). meanwhile(k) is called before each step
// of the depth, e.g. to prefetch.
template <int kRows, int kWidth, typename Left, typename Right, typename Start, typename Meanwhile>
inline __attribute__((always_inline)) void multiply_block(int64_t depth, const Left& left, const Right& right,
                                                          const Start& start, const Meanwhile& meanwhile,
                                                          Vec (*sums)[kWidth]) {
  Vec in_registers[kRows][kWidth];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) in_registers[row][v] = start(row, v);
#pragma GCC unroll 2
  for (int64_t k = 0; k < depth; ++k) {
    meanwhile(k);
    Vec factors[kWidth];
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) factors[v] = right(k, v);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const Vec value = splat(left(row, k));
#pragma GCC unroll 4
      for (int v = 0; v < kWidth; ++v) in_registers[row][v] += value * factors[v];
    }
  }
  // The caller may take their address, e.g. in a loop over rows; then the sums above would not stay in registers.
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) sums[row][v] = in_registers[row][v];
}

template <int kRows, int kWidth, typename Left, typename Right, typename Start>
inline __attribute__((always_inline)) void multiply_block(int64_t depth, const Left& left, const Right& right,
                                                          const Start& start, Vec (*sums)[kWidth]) {
  multiply_block<kRows, kWidth>(
      depth, left, right, start, [](int64_t) {}, sums);
}

// function(n as a constant) for n in 1 .. kMost.
template <int kMost, typename Function>
inline __attribute__((always_inline)) void with_constant(int64_t n, const Function& function) {
  static_assert(kMost >= 1, "there is a form for each number");
  if constexpr (kMost > 1) {
    if (n < kMost) return with_constant<kMost - 1>(n, function);
  }
  function(std::integral_constant<int, kMost>());
}

// function(number of rows as a constant, first row) for blocks of at most kMaxRows rows of nearly equal size: 8 rows
// are 4 + 4, not 6 + 2.
template <typename Function>
inline void for_row_blocks(int64_t n_rows, const Function& function) {
  int64_t blocks = (n_rows + kMaxRows - 1) / kMaxRows;
  for (int64_t at = 0, size; at < n_rows; at += size, --blocks) {
    size = (n_rows - at + blocks - 1) / blocks;
    with_constant<kMaxRows>(
        size, [&](auto rows) __attribute__((always_inline)) { function(rows, at); });
  }
}

}  // namespace rtf
