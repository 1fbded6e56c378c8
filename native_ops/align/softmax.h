// The softmax of a row, in two parts.
#pragma once

#include <cmath>
#include <cstdint>

#include "scaled.h"

namespace rtf {

// Returns the log of the sum of exp(x); to * factor is the softmax.
inline float exponentials(const float* x, int64_t n, float* to, float* factor) {
  float top = -INFINITY;
  for (int64_t k = 0; k < n; ++k) top = x[k] > top ? x[k] : top;
  const float shift = std::isfinite(top) ? top : 0.0f;
  Vec sums{};
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    const Vec value = exp(load(x + k) - splat(shift));
    store(to + k, value);
    sums += value;
  }
  double sum = 0.0;
  if (k < n) {
    store_part(to + k, exp(load_part(x + k, n - k) - splat(shift)), n - k);
    for (; k < n; ++k) sum += to[k];
  }
  for (int i = 0; i < kLanes; ++i) sum += sums[i];
  *factor = static_cast<float>(1.0 / sum);
  return top == -INFINITY ? top : static_cast<float>(shift + std::log(sum));
}

inline void scale_row(float factor, int64_t n, float* row) {
  for (int64_t k = 0; k < n; ++k) row[k] *= factor;
}

}  // namespace rtf
