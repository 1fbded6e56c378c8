// Activation functions and their derivatives, on vectors.
#pragma once

#include "../common/vector.h"
#include "with_function.h"

namespace rtf {

inline Vec exponential(Vec x) {
  Vec scale, rest;
  exp_parts(x, &scale, &rest);
  return scale + scale * rest;
}

// exp(-x) is a normal number up to here. exponential() clips its argument, and what is left of it would count in a
// product with a large number.
constexpr float kLargestPower = 87.0f;

inline Vec logistic(Vec x) { return x < splat(-kLargestPower) ? Vec{} : sigmoid(x); }

// The normal distribution function and its density. The former by 1 - erf(z) = (a1 t + ... + a5 t^5) exp(-z^2) with
// t = 1 / (1 + p z) for z >= 0, which is exact to 1.5e-7 (Abramowitz & Stegun, 7.1.26).
inline void normal_distribution(Vec x, Vec* distribution, Vec* density) {
  const Vec size = at_most(x < splat(0.0f) ? -x : x, splat(100.0f));  // finite
  const Vec power = x * x * splat(-0.5f);
  const Vec bell = power < splat(-kLargestPower) ? Vec{} : exponential(power);
  const Vec t = reciprocal(splat(1.0f) + splat(0.3275911f * 0.70710678f) * size);
  Vec p = splat(1.061405429f);
  p = p * t + splat(-1.453152027f);
  p = p * t + splat(1.421413741f);
  p = p * t + splat(-0.284496736f);
  p = p * t + splat(0.254829592f);
  const Vec tail = splat(0.5f) * p * t * bell;
  *distribution = x < splat(0.0f) ? tail : splat(1.0f) - tail;
  *density = bell * splat(0.39894228f);
}

// As TensorFlow's, also for infinity: swish and gelu of -inf are 0 * inf, which is NaN.
template <int kFunction>
inline Vec activation(Vec x) {
  switch (kFunction) {
    case RTF_RELU: return at_least(x, splat(0.0f));
    case RTF_GELU: {
      Vec distribution, density;
      normal_distribution(x, &distribution, &density);
      return x * distribution;
    }
    case RTF_SWISH: return x * logistic(x);
    case RTF_TANH: return tanh(x);
    case RTF_SIGMOID: return logistic(x);
    default: return x;
  }
}

// The derivative at x.
template <int kFunction>
inline Vec derivative(Vec x) {
  switch (kFunction) {
    case RTF_RELU: return x > splat(0.0f) ? splat(1.0f) : splat(0.0f);
    case RTF_GELU: {
      Vec distribution, density;
      normal_distribution(x, &distribution, &density);
      return distribution + x * density;
    }
    case RTF_SWISH: {
      const Vec s = logistic(x);
      return s + x * s * (splat(1.0f) - s);
    }
    case RTF_TANH: {
      const Vec y = tanh(x);
      return splat(1.0f) - y * y;
    }
    case RTF_SIGMOID: {
      const Vec y = logistic(x);
      return y * (splat(1.0f) - y);
    }
    default: return splat(1.0f);
  }
}

// The same, given the value of the function.
template <int kFunction>
inline Vec derivative_of_output(Vec y) {
  switch (kFunction) {
    case RTF_RELU: return y > splat(0.0f) ? splat(1.0f) : splat(0.0f);
    case RTF_TANH: return splat(1.0f) - y * y;
    case RTF_SIGMOID: return y * (splat(1.0f) - y);
    default: return splat(1.0f);
  }
}

}  // namespace rtf
