// Numbers m * 2^e with a float exponent: sums of products of thousands of probabilities, without logarithms.
//
// A step of a full sum costs a few integer operations instead of one exp per term and a log, and keeps the relative
// precision of a float; a float logarithm of the sum, say -3000, would have an absolute error of 2e-4 per step.
#pragma once

#include <cstring>

#include "../common/vector.h"
#include "scaled_double.h"

namespace rtf {

struct Scaled {
  Vec m, e;
};

inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

inline Vec exp(Vec x) {
  Vec scale, rest;
  exp_parts(x, &scale, &rest);
  return scale + scale * rest;
}

// 2^d for integral d <= 100; 0 below 2^-126.
inline Vec power_of_two(Vec d) {
  d = larger(d, splat(-127.0f));
  const Vec shifted = d + splat(12582912.0f);
  IVec bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits - 0x4B400000 + 127) << 23;
  Vec power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

// exp(x) for any x; 0 for -infinity, NaN for infinity and NaN.
inline Scaled scaled_exp(Vec x) {
  const Vec in_bits = x * splat(1.44269504089f), magic = splat(12582912.0f);
  const Vec size = in_bits > splat(0.0f) ? in_bits : -in_bits;
  const Vec n = size < splat(4194304.0f) ? (in_bits + magic) - magic : in_bits;  // floats from 2^23 on are integral
  Vec rest = (x - n * splat(0.693359375f)) - n * splat(-2.12194440e-4f);
  rest = rest > splat(0.4f) ? splat(0.4f) : rest;
  rest = rest < splat(-0.4f) ? splat(-0.4f) : rest;
  const Vec m = exp(rest) + (x - x);
  const Vec e = m == m ? n : splat(0.0f);
  const auto none = x < splat(kNone / 4);
  return {none ? splat(0.0f) : m, none ? splat(kNone) : e};
}

// The same number with 1 <= m < 2. NaN is preserved.
inline Scaled normalised(Vec m, Vec e) {
  IVec bits;
  std::memcpy(&bits, &m, sizeof(bits));
  const Vec more = __builtin_convertvector((bits >> 23) - 127, Vec);
  bits = (bits & 0x007FFFFF) | 0x3F800000;
  Vec unit;
  std::memcpy(&unit, &bits, sizeof(unit));
  const auto none = (m == splat(0.0f)) | (e < splat(kNone / 2));
  const auto number = m == m;
  return {none ? splat(0.0f) : (number ? unit : m), none ? splat(kNone) : (number ? e + more : e)};
}

// (a + b + c) * factor
inline Scaled sum_times(const Scaled& a, const Scaled& b, const Scaled& c, const Scaled& factor) {
  const Vec top = larger(larger(a.e, b.e), c.e);
  const Vec m = a.m * power_of_two(a.e - top) + b.m * power_of_two(b.e - top) + c.m * power_of_two(c.e - top);
  return normalised(m * factor.m, top + factor.e);
}

}  // namespace rtf
