// The words and types of CUDA C++ for an ordinary compiler.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __grid_constant__

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Vectors have the alignment that they have on the GPU: -fsanitize=undefined finds an address that would be a fault
// there.
#define RTF_VECTOR(T, NAME)                                          \
  struct alignas(2 * sizeof(T)) NAME##2 {                            \
    T x, y;                                                          \
  };                                                                 \
  struct NAME##3 {                                                   \
    T x, y, z;                                                       \
  };                                                                 \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) NAME##4 {  \
    T x, y, z, w;                                                    \
  };                                                                 \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }         \
  inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; } \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
RTF_VECTOR(float, float)
RTF_VECTOR(double, double)
RTF_VECTOR(int, int)
RTF_VECTOR(unsigned, uint)
#undef RTF_VECTOR

namespace rtf {
namespace emulation {

template <class To, class From>
inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "of the same size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// Rounded to the nearest number with 7 bits of mantissa, ties to even.
inline uint16_t bf16_bits(float value) {
  const uint32_t bits = same_bits<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace emulation
}  // namespace rtf

struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) : bits(rtf::emulation::bf16_bits(value)) {}
  operator float() const { return rtf::emulation::same_bits<float>(uint32_t(bits) << 16); }
};

struct __half {
  _Float16 value;
  __half() = default;
  __half(float from) : value(static_cast<_Float16>(from)) {}
  operator float() const { return static_cast<float>(value); }
};

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

struct alignas(4) __half2 {
  __half x, y;
};
using half = __half;
using half2 = __half2;

inline __nv_bfloat16 __float2bfloat16(float value) { return value; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 value) { return {value.x, value.y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 value) { return {value.x, value.y}; }
inline __half __float2half(float value) { return value; }
inline __half __float2half_rn(float value) { return value; }
inline float __half2float(__half value) { return value; }
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline __half2 __float22half2_rn(float2 value) { return {value.x, value.y}; }
inline float2 __half22float2(__half2 value) { return {value.x, value.y}; }

inline float __int_as_float(int bits) { return rtf::emulation::same_bits<float>(bits); }
inline int __float_as_int(float value) { return rtf::emulation::same_bits<int>(value); }
inline float __uint_as_float(unsigned bits) { return rtf::emulation::same_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return rtf::emulation::same_bits<unsigned>(value); }

inline float __expf(float x) { return expf(x); }
inline float __exp2f(float x) { return exp2f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0), 1); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }

#define RTF_MIN_MAX(T)                             \
  inline T min(T x, T y) { return y < x ? y : x; } \
  inline T max(T x, T y) { return x < y ? y : x; }
RTF_MIN_MAX(int)
RTF_MIN_MAX(unsigned)
RTF_MIN_MAX(long)
RTF_MIN_MAX(long long)
RTF_MIN_MAX(unsigned long)
RTF_MIN_MAX(unsigned long long)
#undef RTF_MIN_MAX
inline float min(float x, float y) { return fminf(x, y); }
inline float max(float x, float y) { return fmaxf(x, y); }
inline double min(double x, double y) { return fmin(x, y); }
inline double max(double x, double y) { return fmax(x, y); }
