// Products of a few scattered rows with a matrix that is used again and again: [rows, depth] x [depth, columns].
//
// The matrix is packed once, in the order in which the product reads it; kMaxRows rows x kPanel columns of the result stay in
// registers over the whole depth. On AVX-512 this runs at the speed of a large sgemm from 6 rows on, as long as the
// matrix stays in a cache of the core.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "vector.h"

namespace rtf {

// Rows whose sums stay in registers: 4 vectors each, plus 4 of the matrix and one of the row, of 32 or 16 registers.
#if defined(__AVX512F__)
constexpr int kMaxRows = 6;
#else
constexpr int kMaxRows = 2;
#endif
constexpr int kPanel = 4 * kLanes;

inline int64_t n_panels(int64_t columns) { return (columns + kPanel - 1) / kPanel; }

// Floats of a packed matrix. It has to start at a multiple of kLanes floats: see align_up.
inline int64_t packed_size(int64_t depth, int64_t columns) { return depth * n_panels(columns) * kPanel; }

inline float* align_up(float* p) {
  const uintptr_t step = kLanes * sizeof(float), at = reinterpret_cast<uintptr_t>(p);
  return reinterpret_cast<float*>((at + step - 1) / step * step);
}

// Panels first .. last - 1 of w [depth, columns] -> packed [panel][depth][kPanel], with zeros beyond the last column.
inline void pack(const float* w, int64_t depth, int64_t columns, int64_t first, int64_t last, float* packed) {
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t begin = panel * kPanel, n = std::min<int64_t>(kPanel, columns - begin);
    for (int64_t k = 0; k < depth; ++k) {
      float* to = packed + (panel * depth + k) * kPanel;
      std::copy(w + k * columns + begin, w + k * columns + begin + n, to);
      std::fill(to + n, to + kPanel, 0.0f);
    }
  }
}

// The same of the transposed matrix: w is [columns, depth].
inline void pack_transposed(const float* w, int64_t depth, int64_t columns, int64_t first, int64_t last, float* packed) {
  constexpr int64_t kTile = 16;  // so many rows of the result are written while a cache line of each column is read
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t begin = panel * kPanel, n = std::min<int64_t>(kPanel, columns - begin);
    float* to = packed + panel * depth * kPanel;
    for (int64_t k0 = 0; k0 < depth; k0 += kTile) {
      const int64_t k1 = std::min(k0 + kTile, depth);
      for (int64_t column = 0; column < n; ++column)
        for (int64_t k = k0; k < k1; ++k) to[k * kPanel + column] = w[(begin + column) * depth + k];
      for (int64_t k = k0; k < k1; ++k) std::fill(to + k * kPanel + n, to + (k + 1) * kPanel, 0.0f);
    }
  }
}

// A matrix [depth, columns] as the product reads it.
struct Matrix {
  const float* data;
  int64_t depth, columns;
  int64_t panel_step;  // from one panel to the next
  int64_t row_step;    // from one row of a panel to the next
};

inline Matrix packed_matrix(const float* packed, int64_t depth, int64_t columns) {
  return Matrix{packed, depth, columns, depth * kPanel, kPanel};
}

// A matrix as it is. Packing costs more than it gains where the matrix is used for a few rows only.
inline Matrix plain_matrix(const float* w, int64_t depth, int64_t columns) {
  return Matrix{w, depth, columns, kPanel, columns};
}

// Whether plain_matrix may stand for it: the last panel is whole.
inline bool has_whole_panels(int64_t columns) { return columns % kPanel == 0; }

// y[row][0 .. n) += x[row] * panel, for kRows rows and the n <= kPanel columns of one panel.
template <int kRows>
inline __attribute__((always_inline)) void multiply_panel(const float* const* x, int64_t depth, const float* panel,
                                                          int64_t row_step, float* const* y, int64_t n) {
  Vec sums[kRows][4];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) sums[row][v] = Vec{};
  for (int64_t k = 0; k < depth; ++k, panel += row_step) {
    const Vec w0 = load(panel), w1 = load(panel + kLanes), w2 = load(panel + 2 * kLanes), w3 = load(panel + 3 * kLanes);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Vec value = splat(x[row][k]);
      sums[row][0] += value * w0;
      sums[row][1] += value * w1;
      sums[row][2] += value * w2;
      sums[row][3] += value * w3;
    }
  }
  if (n == kPanel) {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) store(y[row] + v * kLanes, load(y[row] + v * kLanes) + sums[row][v]);
    return;
  }
  for (int row = 0; row < kRows; ++row)
    for (int v = 0; v < 4 && v * kLanes < n; ++v) {
      const int part = static_cast<int>(std::min<int64_t>(kLanes, n - v * kLanes));
      store_part(y[row] + v * kLanes, load_part(y[row] + v * kLanes, part) + sums[row][v], part);
    }
}

template <int kRows>
void multiply_rows(const Matrix& matrix, int64_t panel, const float* const* x, float* const* y) {
  const int64_t column = panel * kPanel, n = std::min<int64_t>(kPanel, matrix.columns - column);
  const float* x_rows[kRows];
  float* y_rows[kRows];
  for (int row = 0; row < kRows; ++row) {
    x_rows[row] = x[row];
    y_rows[row] = y[row] + column;
  }
  multiply_panel<kRows>(x_rows, matrix.depth, matrix.data + panel * matrix.panel_step, matrix.row_step, y_rows, n);
}

// y[row][0 .. columns) += x[row][0 .. depth) * matrix, for all rows. Pieces of nearly equal size: 8 rows are 4 + 4, not 6 + 2.
inline void multiply_add(const float* const* x, size_t n_rows, const Matrix& matrix, float* const* y) {
  for (int64_t panel = 0; panel < n_panels(matrix.columns); ++panel) {
    size_t pieces = (n_rows + kMaxRows - 1) / kMaxRows;
    for (size_t at = 0, size; at < n_rows; at += size, --pieces) {
      size = (n_rows - at + pieces - 1) / pieces;
      switch (size) {
        case 1: multiply_rows<1>(matrix, panel, x + at, y + at); break;
        case 2: multiply_rows<2>(matrix, panel, x + at, y + at); break;
#if defined(__AVX512F__)
        case 3: multiply_rows<3>(matrix, panel, x + at, y + at); break;
        case 4: multiply_rows<4>(matrix, panel, x + at, y + at); break;
        case 5: multiply_rows<5>(matrix, panel, x + at, y + at); break;
        case 6: multiply_rows<6>(matrix, panel, x + at, y + at); break;
#endif
      }
    }
  }
}

inline void multiply_add(const float* const* x, size_t n_rows, int64_t depth, const float* packed, int64_t columns,
                         float* const* y) {
  multiply_add(x, n_rows, packed_matrix(packed, depth, columns), y);
}

}  // namespace rtf
