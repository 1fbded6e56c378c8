// Products of a few scattered rows with a matrix that is used many times: [rows, depth] x [depth, columns].
//
// The matrix is packed once, in the order in which the product reads it (or read as it is, see multiply_plain); the
// sums of kMaxRows rows x kPanel columns stay in registers over the whole depth. On AVX-512 this reaches the speed of a
// large sgemm from 6 rows on, as long as the matrix stays in a core's cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "arena.h"
#include "block_product.h"
#include "vector.h"

namespace rtf {

constexpr int kVectors = 4;  // columns of a panel
constexpr int kPanel = kVectors * kLanes;

// A matrix may consist of parts of equal width, such as the gates of a cell. A panel then has the same columns of each
// part, so that one call of an epilogue gets all gates of some units. 1, 2 or 4 parts.
inline int64_t n_panels(int64_t columns, int parts = 1) {
  const int64_t panel = kPanel / parts;
  return (columns / parts + panel - 1) / panel;
}

// Floats of a packed matrix, which has to begin at a whole vector: see arena.h.
inline int64_t packed_size(int64_t depth, int64_t columns, int parts = 1) {
  return depth * n_panels(columns, parts) * kPanel;
}

// Packs panels first .. last - 1 of w [depth, columns] to packed [panel][depth][kPanel], with zeros beyond the last
// column of a part.
inline void pack(const float* w, int64_t depth, int64_t columns, int64_t first, int64_t last, float* packed,
                 int parts = 1) {
  const int64_t width = columns / parts, slice = kPanel / parts;
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t begin = panel * slice, n = std::min<int64_t>(slice, width - begin);
    float* to = packed + panel * depth * kPanel;
    for (int64_t k = 0; k < depth; ++k)
      for (int part = 0; part < parts; ++part, to += slice) {
        const float* from = w + k * columns + part * width + begin;
        if (n == slice) {
          for (int64_t v = 0; v < slice; v += kLanes) store(to + v, load(from + v));
        } else {
          std::copy(from, from + n, to);
          std::fill(to + n, to + slice, 0.0f);
        }
      }
  }
}

// The same for the transposed matrix, in one part: w is [columns, depth].
inline void pack_transposed(const float* w, int64_t depth, int64_t columns, int64_t first, int64_t last,
                            float* packed) {
  constexpr int64_t kTile = 16;  // rows of the result written per cache line of each column
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
  int parts;
  int64_t panel_step;         // from one panel to the next
  int64_t row_step;           // from one row of a panel to the next
  int64_t vectors[kVectors];  // offsets of the vectors of a panel row

  int64_t panels() const { return n_panels(columns, parts); }
};

inline Matrix packed_matrix(const float* packed, int64_t depth, int64_t columns, int parts = 1) {
  return Matrix{packed, depth, columns, parts, depth * kPanel, kPanel, {0, kLanes, 2 * kLanes, 3 * kLanes}};
}

// An unpacked matrix, for multiply_plain. Packing does not pay off for a matrix that is used for a few rows only.
inline Matrix plain_matrix(const float* w, int64_t depth, int64_t columns, int parts = 1) {
  Matrix matrix{w, depth, columns, parts, kPanel / parts, columns, {}};
  const int of_part = kVectors / parts;
  for (int v = 0; v < kVectors; ++v) matrix.vectors[v] = v / of_part * (columns / parts) + v % of_part * kLanes;
  return matrix;
}

// Whether plain_matrix may be used instead: the last panel is full.
inline bool has_whole_panels(int64_t columns) { return columns % kPanel == 0; }

constexpr int64_t kMostPlainRows = 4;  // rows per call of multiply_plain

// sums[row] = x[row] * matrix in the columns begin .. end - 1, multiples of kLanes, for kRows rows. The matrix is read
// once and sequentially, which dominates the time if it is not in a cache. Sums have the same order as in
// multiply_panel.
template <int kRows>
inline void multiply_plain(const float* const* x, const Matrix& matrix, int64_t begin, int64_t end,
                           float* const* sums) {
  constexpr int kSteps = 4;  // steps of the depth while a sum is in a register
  const int64_t row_step = matrix.row_step;
  const auto steps = [&](int64_t k, auto n_steps) __attribute__((always_inline)) {
    const float* w = matrix.data + k * row_step;
    for (int64_t column = begin; column < end; column += kLanes) {
      Vec factor[n_steps];
      for (int step = 0; step < n_steps; ++step) factor[step] = load(w + step * row_step + column);
      for (int row = 0; row < kRows; ++row) {
        Vec sum = k == 0 ? Vec{} : load(sums[row] + column);
        for (int step = 0; step < n_steps; ++step) sum += splat(x[row][k + step]) * factor[step];
        store(sums[row] + column, sum);
      }
    }
  };
  int64_t k = 0;
  for (; k + kSteps <= matrix.depth; k += kSteps) steps(k, std::integral_constant<int, kSteps>());
  for (; k < matrix.depth; ++k) steps(k, std::integral_constant<int, 1>());
}

// Rows of a panel of a matrix, as a factor of a block.
struct PanelFactor {
  const float* data;
  int64_t row_step;
  const int64_t* vectors;

  Vec operator()(int64_t k, int v) const { return load(data + k * row_step + vectors[v]); }
};

// epilogue(row, rows[row] [depth] * panel as kVectors vectors) for kRows rows.
template <int kRows, typename Epilogue>
inline __attribute__((always_inline)) void multiply_rows(const float* const* rows, const Matrix& matrix, int64_t panel,
                                                         const Epilogue& epilogue) {
  const PanelFactor columns{matrix.data + panel * matrix.panel_step, matrix.row_step, matrix.vectors};
  Vec sums[kRows][kVectors];
  multiply_block<kRows, kVectors>(matrix.depth, ScatteredRows<kRows>(rows), columns, FromZero(), sums);
#pragma GCC unroll 1
  for (int row = 0; row < kRows; ++row) epilogue(row, sums[row]);
}

// epilogue(row, x(row) [depth] * panel as kVectors vectors) for all rows.
template <typename Input, typename Epilogue>
inline void multiply_panel(const Input& x, int64_t n_rows, const Matrix& matrix, int64_t panel,
                           const Epilogue& epilogue) {
  for_row_blocks(
      n_rows, [&](auto count, int64_t at) __attribute__((always_inline)) {
        const float* rows[count];
        for (int row = 0; row < count; ++row) rows[row] = x(at + row);
        multiply_rows<count>(
            rows, matrix,
            panel, [&](int row, const Vec* sums) __attribute__((always_inline)) { epilogue(at + row, sums); });
      });
}

// function(column, whether all lanes are in use, number of lanes in use, sum) for vectors of a result row from a column
// on.
template <int kWidth = kVectors, typename Function>
inline __attribute__((always_inline)) void for_units(int64_t begin, int64_t columns, const Vec* sums,
                                                     const Function& function) {
  for (int v = 0; v < kWidth; ++v) {
    const int64_t at = begin + v * kLanes;
    if (at + kLanes <= columns)
      function(at, std::true_type(), kLanes, sums[v]);
    else if (at < columns)
      function(at, std::false_type(), static_cast<int>(columns - at), sums[v]);
  }
}

// Such vectors of a row of the result; 0 beyond its end.
template <int kWidth = kVectors>
inline void load_units(const float* row, int64_t begin, int64_t columns, Vec* vectors) {
  for (int v = 0; v < kWidth; ++v) {
    const int64_t at = begin + v * kLanes;
    vectors[v] = at < columns ? load_part(row + at, static_cast<int>(std::min<int64_t>(kLanes, columns - at))) : Vec{};
  }
}

// y[row][0 .. columns) += x[row][0 .. depth) * packed, for all rows, in one part.
inline void multiply_add(const float* const* x, size_t n_rows, int64_t depth, const float* packed, int64_t columns,
                         float* const* y) {
  const Matrix matrix = packed_matrix(packed, depth, columns);
  for (int64_t panel = 0; panel < matrix.panels(); ++panel) {
    const int64_t column = panel * kPanel;
    multiply_panel([&](int64_t row) { return x[row]; }, n_rows, matrix, panel,
                   [&](int64_t row, const Vec* sums) {
                     for_units(
                         column, columns,
                         sums, [&](int64_t at, auto whole, int n, Vec sum) __attribute__((always_inline)) {
                           float* to = y[row] + at;
                           store_n<decltype(whole)::value>(to, load_n<decltype(whole)::value>(to, n) + sum, n);
                         });
                   });
  }
}

}  // namespace rtf
