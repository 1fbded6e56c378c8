// What follows a product in registers: bias, positive part, residual connection.
#pragma once

#include <cstdint>

#include "vector.h"

extern "C" {

// y = residual + max(x + bias, 0), the maximum only if relu != 0. bias [columns] and residual, of the shape of y, may
// be null.
typedef struct RtfAfterProduct {
  const float *bias, *residual;
  int relu;
} RtfAfterProduct;
}

namespace rtf {

// Some lanes of a row of the result, from a column on. NaN stays.
template <bool kWhole>
inline Vec after_product(const RtfAfterProduct& after, Vec x, int64_t row, int64_t column, int64_t columns, int lanes) {
  if (after.bias) x += load_n<kWhole>(after.bias + column, lanes);
  if (after.relu) x = at_least(x, Vec{});
  if (after.residual) x += load_n<kWhole>(after.residual + row * columns + column, lanes);
  return x;
}

}  // namespace rtf
