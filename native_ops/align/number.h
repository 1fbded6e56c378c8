// Numbers m * 2^e as in scaled.h, one per GPU thread, and helpers shared by all alignment kernels.
#pragma once

#include "../common/cuda/sums.h"
#include "scaled_double.h"

namespace rtf {

// In memory: a float2, m before e.
struct Number {
  float m, e;
};

__device__ __forceinline__ Number none() { return {0.0f, kNone}; }

__device__ __forceinline__ Number number_of(float2 x) { return {x.x, x.y}; }

__device__ __forceinline__ float2 pair_of(Number x) { return make_float2(x.m, x.e); }

__device__ __forceinline__ float float_of_bits(int32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

__device__ __forceinline__ int32_t bits_of_float(float value) {
  int32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// 2^d for integral d <= 100; 0 below 2^-126.
__device__ __forceinline__ float power_of_two(float d) {
  return float_of_bits((static_cast<int32_t>(fmaxf(d, -127.0f)) + 127) << 23);
}

// exp(x) for any x; 0 for -infinity, NaN for infinity and NaN.
__device__ __forceinline__ Number number_exp(float x) {
  if (x < kNone / 4) return none();
  const float in_bits = x * 1.44269504089f;
  const float n = fabsf(in_bits) < 4194304.0f ? rintf(in_bits) : in_bits;  // floats from 2^23 on are integral
  float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));            // log 2 in two parts (Cody & Waite)
  r = fminf(fmaxf(r, -0.4f), 0.4f);
  float p = 1.0f / 5040;
  p = fmaf(p, r, 1.0f / 720);
  p = fmaf(p, r, 1.0f / 120);
  p = fmaf(p, r, 1.0f / 24);
  p = fmaf(p, r, 1.0f / 6);
  p = fmaf(p, r, 0.5f);
  const float m = 1.0f + fmaf(p * r, r, r) + (x - x);
  return {m, m == m ? n : 0.0f};
}

// The same number with 1 <= m < 2. NaN is preserved.
__device__ __forceinline__ Number normalised(float m, float e) {
  if (m == 0.0f || e < kNone / 2) return none();
  const int32_t bits = bits_of_float(m);
  if (m != m) return {m, e};
  return {float_of_bits((bits & 0x007FFFFF) | 0x3F800000), e + static_cast<float>((bits >> 23) - 127)};
}

// (a + b + c) * factor
__device__ __forceinline__ Number sum_times(Number a, Number b, Number c, Number factor) {
  const float top = fmaxf(fmaxf(a.e, b.e), c.e);
  const float m = a.m * power_of_two(a.e - top) + b.m * power_of_two(b.e - top) + c.m * power_of_two(c.e - top);
  return normalised(m * factor.m, top + factor.e);
}

// before * ahead / total, at most 1.
__device__ __forceinline__ float share_of(Number before, Number ahead, const ScaledDouble& total) {
  const float power = fminf(before.e + ahead.e - static_cast<float>(total.e), 100.0f);
  const float share = before.m * ahead.m * static_cast<float>(1.0 / total.m) * power_of_two(power);
  return share > 1.0f ? 1.0f : share;
}

// Sets numbers to 0, by a whole block.
__device__ __forceinline__ void clear_rows(float2* rows, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) rows[i] = pair_of(none());
  __syncthreads();
}

// Log of the sum of exp(x) over n numbers, by a whole warp. NaN and infinity among them give NaN.
__device__ __forceinline__ float warp_log_sum(const float* x, int64_t n, int lane) {
  float top = -INFINITY, sum = 0.0f;
  for (int64_t k = lane; k < n; k += kWarp) top = fmaxf(top, x[k]);
  for (int offset = kWarp / 2; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, offset));
  const float shift = fabsf(top) < INFINITY ? top : 0.0f;
  for (int64_t k = lane; k < n; k += kWarp) sum += expf(x[k] - shift);
  sum = warp_sum(sum);
  if (top == INFINITY) return NAN;
  return sum == 0.0f ? top : static_cast<float>(shift + log(static_cast<double>(sum)));
}

}  // namespace rtf
