// Activation functions and their derivatives on the GPU; those for the CPU are in functions.h. `function` is a
// constant, or the same for all threads.
#pragma once

#include "../common/cuda/device.h"
#include "activate.h"

namespace rtf {

// x, limited to a range outside of which these functions are constant or proportional to x, so that infinity is never
// multiplied by 0. NaN stays NaN.
__device__ __forceinline__ float finite(float x) { return x > 100.0f ? 100.0f : x < -100.0f ? -100.0f : x; }

__device__ __forceinline__ float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

// The normal distribution function.
__device__ __forceinline__ float normal(float x) { return 0.5f * erfcf(x * -0.70710678f); }

__device__ __forceinline__ float activation(int function, float x) {
  switch (function) {
    case RTF_RELU: return x < 0.0f ? 0.0f : x;
    case RTF_GELU: return x < 0.0f ? finite(x) * normal(finite(x)) : x * normal(x);
    case RTF_SWISH: return x < 0.0f ? finite(x) * logistic(finite(x)) : x * logistic(x);
    case RTF_TANH: return tanhf(x);
    case RTF_SIGMOID: return logistic(x);
    default: return x;
  }
}

// The derivative at x.
__device__ __forceinline__ float derivative(int function, float x) {
  switch (function) {
    case RTF_RELU: return x > 0.0f ? 1.0f : 0.0f;
    case RTF_GELU: {
      const float z = finite(x);
      return normal(z) + z * 0.39894228f * expf(-0.5f * z * z);
    }
    case RTF_SWISH: {
      const float z = finite(x), s = logistic(z);
      return s + z * s * (1.0f - s);
    }
    case RTF_TANH: {
      const float y = tanhf(x);
      return 1.0f - y * y;
    }
    case RTF_SIGMOID: {
      const float y = logistic(x);
      return y * (1.0f - y);
    }
    default: return 1.0f;
  }
}

// The same, given the value of the function.
__device__ __forceinline__ float derivative_of_output(int function, float y) {
  switch (function) {
    case RTF_RELU: return y > 0.0f ? 1.0f : 0.0f;
    case RTF_TANH: return 1.0f - y * y;
    case RTF_SIGMOID: return y * (1.0f - y);
    default: return 1.0f;
  }
}

}  // namespace rtf
