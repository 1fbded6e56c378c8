// Activation functions and their derivatives on the GPU; those for the CPU are in functions.h. `function` is a
// constant, or the same for all threads.
#pragma once

#include "../common/cuda/device.h"
#include "activate.h"

namespace rtf {

__device__ __forceinline__ float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

// The normal distribution function.
__device__ __forceinline__ float normal(float x) { return 0.5f * erfcf(x * -0.70710678f); }

// As TensorFlow's, also for infinity: swish and gelu of -inf are 0 * inf, which is NaN.
__device__ __forceinline__ float activation(int function, float x) {
  switch (function) {
    case RTF_RELU: return x < 0.0f ? 0.0f : x;
    case RTF_GELU: return x * normal(x);
    case RTF_SWISH: return x * logistic(x);
    case RTF_TANH: return tanhf(x);
    case RTF_SIGMOID: return logistic(x);
    default: return x;
  }
}

// The derivative at x.
__device__ __forceinline__ float derivative(int function, float x) {
  switch (function) {
    case RTF_RELU: return x > 0.0f ? 1.0f : 0.0f;
    case RTF_GELU: return normal(x) + x * 0.39894228f * expf(-0.5f * x * x);
    case RTF_SWISH: {
      const float s = logistic(x);
      return s + x * s * (1.0f - s);
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
