// Products of short rows of floats.
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

inline float dot(const float* a, const float* b, int64_t n) {
  Vec sum{};
  by_vectors(n, [&](int64_t u, auto whole, int lanes) {
    sum += load_n<decltype(whole)::value>(a + u, lanes) * load_n<decltype(whole)::value>(b + u, lanes);
  });
  return sum_of(sum);
}

inline void add_scaled(float factor, const float* x, float* y, int64_t n) {
  const Vec factors = splat(factor);
  by_vectors(n, [&](int64_t u, auto whole, int lanes) {
    constexpr bool kWhole = decltype(whole)::value;
    store_n<kWhole>(y + u, load_n<kWhole>(y + u, lanes) + factors * load_n<kWhole>(x + u, lanes), lanes);
  });
}

}  // namespace rtf
