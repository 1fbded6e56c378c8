// Products of short rows of floats, and softmax.
#pragma once

#include "../common/vector.h"

namespace rtf {

inline float sum_of(Vec x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(reinterpret_cast<__m512>(x));
#else
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += x[i];
  return sum;
#endif
}

// Vec y with y[i] = sum_of(x[i]), the same bits; x is used up.
inline Vec sums_of(Vec (&x)[kLanes]) {
#if defined(__AVX512F__)
  const auto at = [&](int i) { return reinterpret_cast<__m512>(x[i / 4 + i % 4 * 4]); };  // where it ends up: i-th
  const auto added = [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); };
  __m512 halves[8], quarters[4], pairs[2];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    halves[i] = added(_mm512_shuffle_f32x4(at(2 * i), at(2 * i + 1), 0x44),
                      _mm512_shuffle_f32x4(at(2 * i), at(2 * i + 1), 0xEE));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    quarters[i] = added(_mm512_shuffle_f32x4(halves[2 * i], halves[2 * i + 1], 0x88),
                        _mm512_shuffle_f32x4(halves[2 * i], halves[2 * i + 1], 0xDD));
  for (int i = 0; i < 2; ++i)
    pairs[i] = added(_mm512_shuffle_ps(quarters[2 * i], quarters[2 * i + 1], 0x44),
                     _mm512_shuffle_ps(quarters[2 * i], quarters[2 * i + 1], 0xEE));
  return reinterpret_cast<Vec>(
      added(_mm512_shuffle_ps(pairs[0], pairs[1], 0x88), _mm512_shuffle_ps(pairs[0], pairs[1], 0xDD)));
#else
  Vec y;
  for (int i = 0; i < kLanes; ++i) y[i] = sum_of(x[i]);
  return y;
#endif
}

// The products of two rows, added up in each lane.
inline Vec products_of(const float* a, const float* b, int64_t n) {
  Vec sum{};
  by_vectors(n, [&](int64_t u, auto whole, int lanes) {
    sum += load_n<decltype(whole)::value>(a + u, lanes) * load_n<decltype(whole)::value>(b + u, lanes);
  });
  return sum;
}

inline float dot(const float* a, const float* b, int64_t n) { return sum_of(products_of(a, b, n)); }

inline void add_scaled(float factor, const float* x, float* y, int64_t n) {
  const Vec factors = splat(factor);
  by_vectors(n, [&](int64_t u, auto whole, int lanes) {
    constexpr bool kWhole = decltype(whole)::value;
    store_n<kWhole>(y + u, load_n<kWhole>(y + u, lanes) + factors * load_n<kWhole>(x + u, lanes), lanes);
  });
}

// Softmax over the rows of x [n, width], column by column; width is a multiple of kLanes.
inline void softmax_of_columns(float* x, int64_t n, int64_t width) {
  for (int64_t u = 0; u < width; u += kLanes) {
    Vec highest = load(x + u), sum{};
    for (int64_t s = 1; s < n; ++s) highest = at_least(load(x + s * width + u), highest);
    for (int64_t s = 0; s < n; ++s) {
      Vec scale, rest;
      exp_parts(load(x + s * width + u) - highest, &scale, &rest);
      const Vec y = scale + scale * rest;
      sum += y;
      store(x + s * width + u, y);
    }
    const Vec factor = splat(1.0f) / sum;
    for (int64_t s = 0; s < n; ++s) store(x + s * width + u, load(x + s * width + u) * factor);
  }
}

}  // namespace rtf
