// What the forms of a product share: ranges, factors that may be transposed, the initial values of sums.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../common/packed_gemm.h"
#include "../common/ragged.h"
#include "../common/tiles.h"
#include "product.h"

namespace rtf {

// A matrix, or the transpose of what is stored.
struct Factor {
  const float* data;
  int64_t row_step, column_step;

  Factor(const float* data, int64_t rows, int64_t columns, bool transposed)
      : data(data), row_step(transposed ? 1 : columns), column_step(transposed ? rows : 1) {}

  const float* at(int64_t row, int64_t column) const { return data + row * row_step + column * column_step; }
  bool transposed() const { return column_step != 1; }
};

// The initial value of the sums of a row.
inline void start_sums(const float* bias, Range columns, float* to) {
  if (bias)
    std::copy(bias + columns.begin, bias + columns.end, to);
  else
    std::fill(to, to + columns.size(), 0.0f);
}

inline int64_t pieces_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

// function(range) for the pieces of a range.
template <typename Function>
void for_pieces(Range all, int64_t size, const Function& function) {
  for (int64_t at = all.begin; at < all.end; at += size) function(Range{at, std::min(all.end, at + size)});
}

// function(range) for the pieces of a depth, also once for none: the initial values of the sums.
template <typename Function>
void for_depth(int64_t depth, int64_t size, const Function& function) {
  if (depth == 0) return function(Range{0, 0});
  for_pieces(Range{0, depth}, size, function);
}

}  // namespace rtf
