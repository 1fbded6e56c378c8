// The random numbers of TensorFlow's stateless ops on a CPU: Philox 4x32 with 10 rounds (Salmon et al. 2011), on
// vectors.
//
// The generator maps a counter of 128 bits to four numbers of 32 bits. Number i of an array has the counter of the
// array plus i / 4, so that any part of an array can be drawn, and drawn again, without the rest.
#pragma once

#include <algorithm>
#include <cstdint>

#include "philox_numbers.h"
#include "vector.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace rtf {

// Half as many lanes: each has a number of 32 bits in its low half, which leaves room for a product.
typedef uint64_t UVec __attribute__((vector_size(kLanes * sizeof(float)), may_alias));
constexpr int kGroups = kLanes / 2;

inline UVec splat_u64(uint64_t x) { return UVec{} + x; }

// The products of the low halves.
inline UVec low_product(UVec x, uint32_t factor) {
#if defined(__AVX512F__)
  return reinterpret_cast<UVec>(_mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(x), _mm512_set1_epi64(factor)));
#elif defined(__AVX2__)
  return reinterpret_cast<UVec>(_mm256_mul_epu32(reinterpret_cast<__m256i>(x), _mm256_set1_epi64x(factor)));
#else
  return (x & splat_u64(0xFFFFFFFFu)) * splat_u64(factor);
#endif
}

// Numbers 4 * group ... of an array: kGroups groups of four at once, in the order of the array.
inline void philox_block(const PhiloxState& state, uint64_t group, uint32_t* numbers) {
  static const uint64_t kInOrder[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  UVec lanes;
  std::memcpy(&lanes, kInOrder, sizeof(lanes));
  const uint64_t first = state.counter[0] + group;
  UVec low = splat_u64(first), high = splat_u64(state.counter[1] + (first < group));
  low += lanes;
  high += reinterpret_cast<UVec>(low < splat_u64(first)) & splat_u64(1);
  // only the low halves of these count
  UVec c0 = low, c1 = low >> 32, c2 = high, c3 = high >> 32;
  uint32_t k0 = static_cast<uint32_t>(state.key), k1 = static_cast<uint32_t>(state.key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const UVec p0 = low_product(c0, kPhiloxFactor0), p1 = low_product(c2, kPhiloxFactor1);
    c0 = (p1 >> 32) ^ c1 ^ splat_u64(k0);
    c2 = (p0 >> 32) ^ c3 ^ splat_u64(k1);
    c1 = p1;
    c3 = p0;
    k0 += kPhiloxKeyStep0;
    k1 += kPhiloxKeyStep1;
  }
  const UVec mask = splat_u64(0xFFFFFFFFu);
  const UVec pair0 = (c0 & mask) | (c1 << 32), pair1 = (c2 & mask) | (c3 << 32);
  uint64_t pairs[2 * kGroups];
  for (int lane = 0; lane < kGroups; ++lane) {
    pairs[2 * lane] = pair0[lane];
    pairs[2 * lane + 1] = pair1[lane];
  }
  std::memcpy(numbers, pairs, sizeof(pairs));
}

// The factors of a dropout: 0 with the probability `rate`, else `scale`. Number i is kept if the uniform number that
// TensorFlow makes of its low 23 bits, in [0, 1), is not below the rate.
class Dropout {
 public:
  static constexpr int64_t kBlock = 4 * kGroups;  // numbers drawn at once

  Dropout(const PhiloxState& state, float rate, float scale)
      : state_(state), least_(static_cast<int32_t>(least_kept(rate))), scale_(scale) {}

  // Factors first ... first + n - 1, at the address that is returned. The buffer has space for n + 2 * kBlock numbers.
  const float* fill(int64_t first, int64_t n, float* buffer) const {
    const int64_t start = first / 4 * 4, end = first + n;
    const int32_t least = least_;  // copies, which no store changes
    const float scale = scale_;
    float* to = buffer;
    for (int64_t i = start; i < end; i += kBlock, to += kBlock) {
      uint32_t numbers[kBlock];
      philox_block(state_, static_cast<uint64_t>(i / 4), numbers);
      for (int64_t j = 0; j < kBlock; ++j)
        to[j] = static_cast<int32_t>(numbers[j] & kUniformBits) >= least ? scale : 0.0f;
    }
    return buffer + (first - start);
  }

 private:
  PhiloxState state_;
  int32_t least_;
  float scale_;
};

}  // namespace rtf
