// Sums over four steps of the depth for a vector of columns, exact in int32, see common/panel_product.h. To them kStart
// times the sum of the numbers of a row is added, since some instructions take the stored bytes, which are 128 too
// large.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace rtf {

#if defined(__AVX512VNNI__) && defined(__AVX512F__)

struct Dot {
  typedef int32_t Sum;
  typedef __m512i Sums;
#if defined(__AMX_INT8__)
  static constexpr bool kTiles = true;
#else
  static constexpr bool kTiles = false;
#endif
  static constexpr int kColumns = 16, kVectors = 4, kMaxRows = 6;  // 24 sums, 4 factors of 32 registers
  static constexpr int32_t kStart = -128;

  static Sums zero() { return _mm512_setzero_si512(); }
  static Sums load(const uint8_t* w) { return _mm512_loadu_si512(w); }
  static Sums add(Sums sums, Sums w, int32_t x) { return _mm512_dpbusd_epi32(sums, w, _mm512_set1_epi32(x)); }
  static void store(int32_t* to, Sums sums) { _mm512_storeu_si512(to, sums); }
};

#elif defined(__AVX2__)

struct Dot {
  typedef int32_t Sum;
  typedef __m256i Sums;
  static constexpr bool kTiles = false;
  static constexpr int kColumns = 8, kVectors = 4, kMaxRows = 2;  // 8 sums, 4 factors of 16 registers

  static Sums zero() { return _mm256_setzero_si256(); }
  static void store(int32_t* to, Sums sums) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sums); }

#if defined(__AVXVNNI__)
  static constexpr int32_t kStart = -128;

  static Sums load(const uint8_t* w) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)); }
  static Sums add(Sums sums, Sums w, int32_t x) { return _mm256_dpbusd_avx_epi32(sums, w, _mm256_set1_epi32(x)); }
#else
  static constexpr int32_t kStart = 0;

  static Sums load(const uint8_t* w) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)) ^ _mm256_set1_epi8(-128);
  }
  // |x| * (sign of x) w: sums of two products are at most 2 * 127^2 < 2^15, so that nothing saturates.
  static Sums add(Sums sums, Sums w, int32_t x) {
    const __m256i value = _mm256_set1_epi32(x);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(value), _mm256_sign_epi8(w, value));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
#endif
};

#else

// Any CPU: the compiler finds vectors for the loops.
struct Dot {
  typedef int32_t Sum;
  static constexpr bool kTiles = false;
  static constexpr int kColumns = 16, kVectors = 1, kMaxRows = 2;
  static constexpr int32_t kStart = 0;

  struct Sums {
    int32_t values[kColumns];
  };
  struct Factors {
    int16_t values[4][kColumns];
  };

  static Sums zero() { return {}; }
  static Factors load(const uint8_t* w) {
    Factors factors;
    for (int column = 0; column < kColumns; ++column)
      for (int k = 0; k < 4; ++k) factors.values[k][column] = static_cast<int16_t>(w[4 * column + k] - 128);
    return factors;
  }
  static Sums add(Sums sums, const Factors& w, int32_t x) {
    int8_t steps[4];
    std::memcpy(steps, &x, sizeof(steps));
    for (int k = 0; k < 4; ++k)
      for (int column = 0; column < kColumns; ++column) sums.values[column] += steps[k] * w.values[k][column];
    return sums;
  }
  static void store(int32_t* to, const Sums& sums) { std::memcpy(to, sums.values, sizeof(sums.values)); }
};

#endif

}  // namespace rtf
