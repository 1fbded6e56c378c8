// Sums over two steps of the depth for a vector of columns, see panel_product.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "bfloat16.h"
#include "tiles.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace rtf {

#if defined(__AVX512BF16__) && defined(__AVX512F__)

struct PairDot {
  typedef float Sum;
  typedef __m512 Sums;
  static constexpr bool kTiles = RTF_TILES;
  static constexpr int kColumns = 16, kVectors = 4, kMaxRows = 6;  // 24 sums, 4 factors of 32 registers

  static Sums zero() { return _mm512_setzero_ps(); }
  static __m512i load(const uint8_t* w) { return _mm512_loadu_si512(w); }
  static Sums add(Sums sums, __m512i w, int32_t x) {
    return _mm512_dpbf16_ps(sums, (__m512bh)w, (__m512bh)_mm512_set1_epi32(x));
  }
  static void store(float* to, Sums sums) { _mm512_storeu_ps(to, sums); }
};

#elif defined(__AVX2__) && defined(__FMA__)

struct PairDot {
  typedef float Sum;
  typedef __m256 Sums;
  static constexpr bool kTiles = false;
  static constexpr int kColumns = 8, kVectors = 2, kMaxRows = 4;  // 8 sums, 4 factors of 16 registers

  struct Factors {
    __m256 first, second;
  };

  static Sums zero() { return _mm256_setzero_ps(); }
  static Factors load(const uint8_t* w) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u))))};
  }
  static Sums add(Sums sums, const Factors& w, int32_t x) {
    const uint32_t bits = static_cast<uint32_t>(x);
    sums = _mm256_fmadd_ps(w.first, _mm256_set1_ps(float_of(bits << 16)), sums);
    return _mm256_fmadd_ps(w.second, _mm256_set1_ps(float_of(bits & 0xffff0000u)), sums);
  }
  static void store(float* to, Sums sums) { _mm256_storeu_ps(to, sums); }
};

#else

// Any CPU: the compiler finds vectors for the loops.
struct PairDot {
  typedef float Sum;
  static constexpr bool kTiles = false;
  static constexpr int kColumns = 16, kVectors = 1, kMaxRows = 2;

  struct Sums {
    float values[kColumns];
  };
  struct Factors {
    float values[2][kColumns];
  };

  static Sums zero() { return {}; }
  static Factors load(const uint8_t* w) {
    Factors factors;
    for (int column = 0; column < kColumns; ++column) {
      uint32_t bits;
      std::memcpy(&bits, w + 4 * column, sizeof(bits));
      factors.values[0][column] = float_of(bits << 16);
      factors.values[1][column] = float_of(bits & 0xffff0000u);
    }
    return factors;
  }
  static Sums add(Sums sums, const Factors& w, int32_t x) {
    const uint32_t bits = static_cast<uint32_t>(x);
    const float steps[2] = {float_of(bits << 16), float_of(bits & 0xffff0000u)};
    for (int k = 0; k < 2; ++k)
      for (int column = 0; column < kColumns; ++column) sums.values[column] += steps[k] * w.values[k][column];
    return sums;
  }
  static void store(float* to, const Sums& sums) { std::memcpy(to, sums.values, sizeof(sums.values)); }
};

#endif

}  // namespace rtf
