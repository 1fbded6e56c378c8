// One number m * 2^e in double precision, on the CPU and on the GPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../common/both.h"

namespace rtf {

// The exponent of 0. Exponents below half of it count as 0, so that adding it forbids a transition.
constexpr float kNone = -1e30f;

struct ScaledDouble {
  double m = 0.0;
  double e = kNone;

  RTF_BOTH bool is_none() const { return m == 0.0 || e < kNone / 2; }

  RTF_BOTH void add(double other_m, double other_e) {
    const double top = e > other_e ? e : other_e;
    m = m * power(e - top) + other_m * power(other_e - top);
    e = top;
  }

  // The same number with 1 <= m < 2.
  RTF_BOTH void normalise() {
    if (is_none()) {
      *this = ScaledDouble();
    } else if (m == m) {
      int64_t bits;
      std::memcpy(&bits, &m, sizeof(bits));
      e += static_cast<double>((bits >> 52) - 1023);
      bits = (bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000;
      std::memcpy(&m, &bits, sizeof(m));
    }
  }

  // -infinity for 0, NaN for NaN
  RTF_BOTH double log() const { return is_none() ? -INFINITY : std::log(m) + e * 0.69314718055994530942; }

  // 2^d for integral d <= 0; 0 below 2^-1000.
  RTF_BOTH static double power(double d) {
    const int64_t bits = d < -1000.0 ? 0 : static_cast<int64_t>(d + 1023.0) << 52;
    double result;
    std::memcpy(&result, &bits, sizeof(result));
    return result;
  }
};

}  // namespace rtf
