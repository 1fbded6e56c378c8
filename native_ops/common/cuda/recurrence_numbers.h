// Number formats of recurrences on the GPU: how they are stored, and how the tensor cores multiply them.
//
// A "word" is a register of a fragment: one float, or two 16-bit numbers. Sums are always float.
//
// Float: the default is three TF32 products (a and b each split into a TF32 number and the remainder, without the
// product of the remainders), with an error of about 2^-21 per product, close to that of float itself. This was chosen
// over ordinary multiply-adds because it takes 24 cycles of a quarter of a multiprocessor per 1024 multiply-adds, where
// they take 32 plus the loads of their operands. A single TF32 product (2^-11) is used only if the caller allows it.
#pragma once

#include "mma.h"

namespace rtf {
namespace recurrence {

// The same number, hidden from the optimizer. Otherwise the compiler splits all weights before the time loop and spills
// those that do not fit into registers.
__device__ __forceinline__ uint32_t anew(uint32_t value) {
#if !RTF_CUDA_EMULATION
  asm volatile("" : "+r"(value));
#endif
  return value;
}

struct FloatSplit {
  using Element = float;
  static constexpr int kPerWord = 1, kCycles = 24;

  static __device__ uint32_t word(const float* x) { return __float_as_uint(x[0]); }
  // Converts a word once, when the weights are packed.
  static __device__ uint32_t prepared(uint32_t word) { return word; }

  // sums[n] += a b[n] for the first `columns` of kColumns
  template <int kColumns>
  static __device__ __forceinline__ void multiply(float (&sums)[kColumns][4], const uint32_t* a,
                                                  const uint32_t (&b)[kColumns][2], int columns) {
    uint32_t a_high[4], a_low[4], b_high[kColumns][2], b_low[kColumns][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) split(anew(a[i]), &a_high[i], &a_low[i]);
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) split(b[n][i], &b_high[n][i], &b_low[n][i]);
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
      if (n < columns) mma_m16n8k8_tf32(sums[n], a_low, b_high[n]);
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
      if (n < columns) mma_m16n8k8_tf32(sums[n], a_high, b_low[n]);
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
      if (n < columns) mma_m16n8k8_tf32(sums[n], a_high, b_high[n]);
  }

  static __device__ __forceinline__ void split(uint32_t value, uint32_t* high, uint32_t* low) {
    *high = (value + 0x1000u) & 0xffffe000u;  // to_tf32, but faster; not for NaN: then low is NaN, which is enough
    *low = __float_as_uint(__uint_as_float(value) - __uint_as_float(*high));
  }
};

struct FloatTf32 {
  using Element = float;
  static constexpr int kPerWord = 1, kCycles = 8;

  static __device__ uint32_t word(const float* x) { return __float_as_uint(x[0]); }
  static __device__ uint32_t prepared(uint32_t word) { return to_tf32(__uint_as_float(word)); }

  template <int kColumns>
  static __device__ __forceinline__ void multiply(float (&sums)[kColumns][4], const uint32_t* a,
                                                  const uint32_t (&b)[kColumns][2], int columns) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const uint32_t rounded[2] = {prepared(b[n][0]), prepared(b[n][1])};
      if (n < columns) mma_m16n8k8_tf32(sums[n], a, rounded);
    }
  }
};

// 16-bit numbers; Pair: two of them in one register.
template <class Element_, class Pair>
struct Half {
  using Element = Element_;
  static constexpr int kPerWord = 2, kCycles = 8;

  static __device__ uint32_t word(const Element* x) {
    Pair pair;
    pair.x = x[0];
    pair.y = x[1];
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
  }
  static __device__ uint32_t prepared(uint32_t word) { return word; }
};

struct Bfloat16 : Half<__nv_bfloat16, __nv_bfloat162> {
  template <int kColumns>
  static __device__ __forceinline__ void multiply(float (&sums)[kColumns][4], const uint32_t* a,
                                                  const uint32_t (&b)[kColumns][2], int columns) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
      if (n < columns) mma_m16n8k16_bf16(sums[n], a, b[n]);
  }
};

struct Float16 : Half<__half, __half2> {
  template <int kColumns>
  static __device__ __forceinline__ void multiply(float (&sums)[kColumns][4], const uint32_t* a,
                                                  const uint32_t (&b)[kColumns][2], int columns) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
      if (n < columns) mma_m16n8k16_f16(sums[n], a, b[n]);
  }
};

__device__ __forceinline__ float value_of(float x) { return x; }
__device__ __forceinline__ float value_of(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float value_of(__half x) { return __half2float(x); }

__device__ __forceinline__ void put(float* to, float x) { *to = x; }
__device__ __forceinline__ void put(__nv_bfloat16* to, float x) { *to = __float2bfloat16(x); }
__device__ __forceinline__ void put(__half* to, float x) { *to = __float2half(x); }

// For -inf, exp is inf and the quotient 0.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

}  // namespace recurrence
}  // namespace rtf
