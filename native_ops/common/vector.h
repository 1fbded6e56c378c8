// Vectors of floats as wide as the target supports, and the gate functions on them.
//
// GCC's and clang's vector extensions are used instead of intrinsics, so that one source serves every CPU. Compile
// without -ffast-math: NaN has to propagate, for the numerical checks of the training.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace rtf {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float)), may_alias));
typedef float VecUnaligned __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
typedef int32_t IVec __attribute__((vector_size(kLanes * sizeof(int32_t)), may_alias));

// x - 0 is x, also for -0 and NaN, so this compiles to one broadcast without an addition.
inline Vec splat(float x) { return x - Vec{}; }

inline Vec load(const float* p) { return *reinterpret_cast<const VecUnaligned*>(p); }

inline void store(float* p, Vec x) { *reinterpret_cast<VecUnaligned*>(p) = x; }

// Stores a whole vector past the caches, for large arrays: the line is not read first. p has to be aligned to a vector;
// the thread calls stream_end() before others may read.
inline void stream(float* p, Vec x) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, reinterpret_cast<__m512>(x));
#else
  store(p, x);
#endif
}

inline void stream_end() {
#if defined(__AVX512F__)
  _mm_sfence();
#endif
}

// Prefetches the cache line at p, for reading or for writing. GCC considers a function that only calls
// __builtin_prefetch to have no effect, and drops calls of it.
inline void prefetch_to_read(const void* p) {
#if defined(__x86_64__)
  asm volatile("prefetcht0 (%0)" : : "r"(p));
#else
  __builtin_prefetch(p);
#endif
}

inline void prefetch_to_write(const void* p) {
#if defined(__x86_64__)
  asm volatile("prefetchw (%0)" : : "r"(p));
#else
  __builtin_prefetch(p, 1);
#endif
}

#if defined(__AVX__) && !defined(__AVX512F__)
// A mask of the first n lanes.
inline __m256i first_lanes(int n) {
  const IVec lanes = {0, 1, 2, 3, 4, 5, 6, 7}, limit = n - IVec{};
  return reinterpret_cast<__m256i>(lanes < limit);
}
#endif

// The first n of kLanes entries; the others are 0, and their memory is not read. Masks, as a copy of n entries is a
// call and a wait for the store of the vector that it fills.
inline Vec load_part(const float* p, int n) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p));
#elif defined(__AVX__)
  return reinterpret_cast<Vec>(_mm256_maskload_ps(p, first_lanes(n)));
#else
  Vec x{};
  std::memcpy(&x, p, n * sizeof(float));
  return x;
#endif
}

inline void store_part(float* p, Vec x, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), reinterpret_cast<__m512>(x));
#elif defined(__AVX__)
  _mm256_maskstore_ps(p, first_lanes(n), reinterpret_cast<__m256>(x));
#else
  std::memcpy(p, &x, n * sizeof(float));
#endif
}

template <bool kWhole>
inline Vec load_n(const float* p, int n) {
  return kWhole ? load(p) : load_part(p, n);
}

template <bool kWhole>
inline void store_n(float* p, Vec x, int n) {
  if (kWhole)
    store(p, x);
  else
    store_part(p, x, n);
}

// function(u, whether all lanes are in use, number of lanes in use) for the vectors that cover 0 .. units - 1. The last
// one is partial if they do not fill it.
template <typename Function>
inline void by_vectors(int64_t units, Function function) {
  int64_t u = 0;
  for (; u + kLanes <= units; u += kLanes) function(u, std::true_type(), kLanes);
  if (u < units) function(u, std::false_type(), static_cast<int>(units - u));
}

// The smaller or larger one; NaN if x is NaN.
inline Vec at_most(Vec x, Vec limit) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(
      _mm512_maskz_min_ps(0xFFFF, reinterpret_cast<__m512>(limit), reinterpret_cast<__m512>(x)));
#else
  return x > limit ? limit : x;
#endif
}

inline Vec at_least(Vec x, Vec limit) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(
      _mm512_maskz_max_ps(0xFFFF, reinterpret_cast<__m512>(limit), reinterpret_cast<__m512>(x)));
#else
  return x < limit ? limit : x;
#endif
}

// exp(factor * x) = scale * (1 + rest) with scale a power of 2 and |rest| < 0.42. The argument is clipped so that
// everything stays finite and normal. NaN propagates through rest.
inline void exp_parts(Vec x, Vec* scale, Vec* rest, float factor = 1.0f) {
  const float limit = 87.0f / (factor < 0 ? -factor : factor);
  x = at_least(at_most(x, splat(limit)), splat(-limit));
  const Vec high = splat(1.44269502f * factor), low = splat(1.92596299e-8f * factor);  // 1 / log(2) in two parts
  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits; with the exponent bias of 127
  const Vec magic = splat(12582912.0f + 127.0f);
  const Vec shifted = x * high + magic;
  const Vec r = x * low + (x * high - (shifted - magic));  // 2^r - 1 by its series: log(2)^k / k!
  Vec p = splat(1.5403530e-4f);
  p = p * r + splat(1.3333558e-3f);
  p = p * r + splat(9.6181291e-3f);
  p = p * r + splat(5.5504109e-2f);
  p = p * r + splat(2.4022651e-1f);
  p = p * r + splat(6.9314718e-1f);
  *rest = p * r;
  IVec bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = bits << 23;
  std::memcpy(scale, &bits, sizeof(bits));
}

// 1 / x for normal x >= 1. A division of whole vectors would take as long as the rest of a gate.
inline Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
  const Vec estimate = reinterpret_cast<Vec>(_mm512_maskz_rcp14_ps(0xFFFF, reinterpret_cast<__m512>(x)));
  return estimate + estimate * (splat(1.0f) - x * estimate);  // Newton's step doubles the 14 bits
#else
  return splat(1.0f) / x;
#endif
}

inline Vec sigmoid(Vec x) {
  Vec scale, rest;
  exp_parts(x, &scale, &rest, -1.0f);
  return reciprocal(splat(1.0f) + (scale + scale * rest));
}

// (e^2x - 1) / (e^2x + 1), with e^2x - 1 computed without cancellation.
inline Vec tanh(Vec x) {
  Vec scale, rest;
  exp_parts(x, &scale, &rest, 2.0f);
  const Vec less_one = scale * rest + (scale - splat(1.0f));
  return less_one * reciprocal(less_one + splat(2.0f));
}

}  // namespace rtf
