// The update rules, entry by entry, for CPU and GPU. The formulas and the order of their operations are those of
// TensorFlow's kernels. A rule is made of the numbers of an update (see RtfRule) and changes entry i of the value w and
// of the slots s0, s1, s2 by that of the gradient g.
#pragma once

#include <cmath>

#include "../common/both.h"
#include "update.h"

namespace rtf {

#define RTF_STEP                                                                                      \
  RTF_BOTH void step(int64_t i, float* __restrict w, const float* __restrict g, float* __restrict s0, \
                     float* __restrict s1, float* __restrict s2) const

struct Sgd {
  float rate;

  RTF_BOTH explicit Sgd(const float* n) : rate(n[0]) {}
  RTF_STEP { w[i] -= g[i] * rate; }
};

struct Momentum {
  float momentum, look_ahead, direct;

  RTF_BOTH explicit Momentum(const float* n)
      : momentum(n[1]), look_ahead(n[2] != 0 ? n[0] : 0.0f), direct(n[2] != 0 ? n[1] * n[0] : n[0]) {}
  RTF_STEP {
    s0[i] = s0[i] * momentum + g[i];
    w[i] -= g[i] * look_ahead + s0[i] * direct;
  }
};

struct KerasSgd {
  float rate, momentum, look_ahead, direct;

  RTF_BOTH explicit KerasSgd(const float* n)
      : rate(n[0]), momentum(n[1]), look_ahead(n[2] != 0 ? n[0] : 0.0f), direct(n[2] != 0 ? n[1] : 1.0f) {}
  RTF_STEP {
    s0[i] = s0[i] * momentum - g[i] * rate;
    w[i] += s0[i] * direct - g[i] * look_ahead;
  }
};

struct Adam {
  float alpha, rest1, rest2, epsilon, of_g, of_m, decay;

  RTF_BOTH explicit Adam(const float* n)
      : alpha(n[0] * std::sqrt(1.0f - n[2]) / (1.0f - n[1])),
        rest1(1.0f - n[3]),
        rest2(1.0f - n[4]),
        epsilon(n[5]),
        of_g(n[6] != 0 ? rest1 : 0.0f),
        of_m(n[6] != 0 ? n[3] : 1.0f),
        decay(n[0] * n[7]) {}
  RTF_STEP {
    s0[i] += (g[i] - s0[i]) * rest1;
    s1[i] += (g[i] * g[i] - s1[i]) * rest2;
    const float kept = decay != 0 ? w[i] - decay * w[i] : w[i];
    w[i] = kept - (g[i] * of_g + s0[i] * of_m) * alpha / (std::sqrt(s1[i]) + epsilon);
  }
};

struct AmsGrad {
  float alpha, rest1, rest2, epsilon;

  RTF_BOTH explicit AmsGrad(const float* n)
      : alpha(n[0] * std::sqrt(1.0f - n[2]) / (1.0f - n[1])), rest1(1.0f - n[3]), rest2(1.0f - n[4]), epsilon(n[5]) {}
  RTF_STEP {
    s0[i] += (g[i] - s0[i]) * rest1;
    s1[i] += (g[i] * g[i] - s1[i]) * rest2;
    s2[i] = s1[i] > s2[i] ? s1[i] : s2[i];
    w[i] -= s0[i] * alpha / (std::sqrt(s2[i]) + epsilon);
  }
};

struct NadamKeras {
  float of_g, of_m, of_v, beta1, beta2, epsilon;

  RTF_BOTH explicit NadamKeras(const float* n)
      : of_g(n[0]), of_m(n[1]), of_v(n[2]), beta1(n[3]), beta2(n[4]), epsilon(n[5]) {}
  RTF_STEP {
    s0[i] = beta1 * s0[i] + (1.0f - beta1) * g[i];
    s1[i] = beta2 * s1[i] + (1.0f - beta2) * (g[i] * g[i]);
    w[i] -= (of_g * g[i] + of_m * s0[i]) / (std::sqrt(of_v * s1[i]) + epsilon);
  }
};

struct RmsProp {
  float rate, rest, momentum, epsilon;

  RTF_BOTH explicit RmsProp(const float* n) : rate(n[0]), rest(1.0f - n[1]), momentum(n[2]), epsilon(n[3]) {}
  RTF_STEP {
    s0[i] += (g[i] * g[i] - s0[i]) * rest;
    s1[i] = s1[i] * momentum + g[i] * rate / std::sqrt(epsilon + s0[i]);
    w[i] -= s1[i];
  }
};

struct CenteredRmsProp {
  float rate, rest, momentum, epsilon;

  RTF_BOTH explicit CenteredRmsProp(const float* n) : rate(n[0]), rest(1.0f - n[1]), momentum(n[2]), epsilon(n[3]) {}
  RTF_STEP {
    s0[i] += (g[i] * g[i] - s0[i]) * rest;
    s2[i] += (g[i] - s2[i]) * rest;
    s1[i] = s1[i] * momentum + g[i] * rate / std::sqrt((s0[i] - s2[i] * s2[i]) + epsilon);
    w[i] -= s1[i];
  }
};

struct Adagrad {
  float rate;

  RTF_BOTH explicit Adagrad(const float* n) : rate(n[0]) {}
  RTF_STEP {
    s0[i] += g[i] * g[i];
    w[i] -= g[i] * rate / std::sqrt(s0[i]);
  }
};

struct Adadelta {
  float rate, rho, epsilon;

  RTF_BOTH explicit Adadelta(const float* n) : rate(n[0]), rho(n[1]), epsilon(n[2]) {}
  RTF_STEP {
    s0[i] = s0[i] * rho + g[i] * g[i] * (1.0f - rho);
    const float change = std::sqrt(s1[i] + epsilon) / std::sqrt(s0[i] + epsilon) * g[i];
    s1[i] = s1[i] * rho + change * change * (1.0f - rho);
    w[i] -= change * rate;
  }
};

struct RAdam {
  float rate, of_m, of_v, of_root, instead, rest1, rest2, decay;

  RTF_BOTH explicit RAdam(const float* n)
      : rate(n[0]),
        of_m(n[1]),
        of_v(n[2]),
        of_root(n[3] != 0 ? 1.0f : 0.0f),
        instead(n[3] != 0 ? n[6] : 1.0f),
        rest1(1.0f - n[4]),
        rest2(1.0f - n[5]),
        decay(n[7]) {}
  RTF_STEP {
    s0[i] += (g[i] - s0[i]) * rest1;
    s1[i] += (g[i] * g[i] - s1[i]) * rest2;
    w[i] -= rate * (of_m * s0[i] / (std::sqrt(of_v * s1[i]) * of_root + instead) + decay * w[i]);
  }
};

struct Lion {
  float rate, rest1, rest2, decay;

  RTF_BOTH explicit Lion(const float* n) : rate(n[0]), rest1(1.0f - n[1]), rest2(1.0f - n[2]), decay(n[3]) {}
  RTF_STEP {
    const float mixed = s0[i] + rest1 * (g[i] - s0[i]);
    // NaN stays NaN
    const float sign = mixed > 0 ? 1.0f : mixed < 0 ? -1.0f : mixed;
    w[i] -= rate * (sign + decay * w[i]);
    s0[i] += rest2 * (g[i] - s0[i]);
  }
};

struct ScheduleFree {
  float rate, kept, of_v, beta1, rest2, epsilon, decay;

  RTF_BOTH explicit ScheduleFree(const float* n)
      : rate(n[0]), kept(1.0f - n[1]), of_v(n[2]), beta1(n[3]), rest2(1.0f - n[4]), epsilon(n[5]), decay(n[6]) {}
  RTF_STEP {
    s1[i] += (g[i] * g[i] - s1[i]) * rest2;
    const float change = rate * (g[i] / (std::sqrt(of_v * s1[i]) + epsilon) + decay * w[i]);
    const float after = kept * (s0[i] - beta1 * change);
    w[i] += s0[i] - change - after;
    s0[i] = after;
  }
};

struct Average {
  float rate;

  RTF_BOTH explicit Average(const float* n) : rate(n[0]) {}
  RTF_STEP { w[i] += (g[i] - w[i]) * rate; }
};

#undef RTF_STEP

// Rules with two sums over the entries of a parameter: entry i adds to them by `add`, `factors` makes two numbers of
// them for each parameter, and `apply` changes entry i by these.

struct Lamb {
  float rate, of_m, of_v, rest1, rest2, epsilon, decay;

  RTF_BOTH explicit Lamb(const float* n)
      : rate(n[0]), of_m(n[1]), of_v(n[2]), rest1(1.0f - n[3]), rest2(1.0f - n[4]), epsilon(n[5]), decay(n[6]) {}

  RTF_BOTH float direction(float w, float m, float v) const {
    return of_m * m / (std::sqrt(of_v * v) + epsilon) + decay * w;
  }

  // The squares of the weights and of the direction.
  RTF_BOTH void add(int64_t i, const float* __restrict w, const float* __restrict g, float* __restrict m,
                    float* __restrict v, float* weights, float* directions) const {
    m[i] += (g[i] - m[i]) * rest1;
    v[i] += (g[i] * g[i] - v[i]) * rest2;
    const float u = direction(w[i], m[i], v[i]);
    *weights += w[i] * w[i];
    *directions += u * u;
  }

  RTF_BOTH void factors(const RtfParameter&, const double* sums, float* result) const {
    const float ratio = static_cast<float>(std::sqrt(sums[0]) / std::sqrt(sums[1]));
    result[0] = rate * (sums[0] > 0 && sums[1] > 0 ? ratio : 1.0f);
    result[1] = 0.0f;
  }

  RTF_BOTH void apply(int64_t i, float* __restrict w, const float* __restrict, float* __restrict m, float* __restrict v,
                      const float* factors) const {
    w[i] -= factors[0] * direction(w[i], m[i], v[i]);
  }
};

struct ScaledAdam {
  float rate, rest1, rest2, epsilon, scale_rate, least;

  RTF_BOTH explicit ScaledAdam(const float* n)
      : rate(n[0]), rest1(1.0f - n[1]), rest2(1.0f - n[2]), epsilon(n[3]), scale_rate(n[4]), least(n[5]) {}

  // The squares of the weights, and the gradient of the logarithm of their scale.
  RTF_BOTH void add(int64_t i, const float* __restrict w, const float* __restrict g, float* __restrict,
                    float* __restrict, float* weights, float* slopes) const {
    *weights += w[i] * w[i];
    *slopes += g[i] * w[i];
  }

  RTF_BOTH void factors(const RtfParameter& of, const double* sums, float* result) const {
    if (!of.size) return;
    const float slope = static_cast<float>(sums[1]);
    float &m = *of.slots[2], &v = *of.slots[3];
    m += (slope - m) * rest1;
    v += (slope * slope - v) * rest2;
    const float scale = static_cast<float>(std::sqrt(sums[0] / of.size));
    result[0] = rate * (of.size == 1 ? scale_rate : scale < least ? least : scale);
    result[1] = of.size == 1 ? 0.0f : rate * scale_rate * m / (std::sqrt(v) + epsilon);
  }

  RTF_BOTH void apply(int64_t i, float* __restrict w, const float* __restrict g, float* __restrict m,
                      float* __restrict v, const float* factors) const {
    m[i] += (g[i] - m[i]) * rest1;
    v[i] += (g[i] * g[i] - v[i]) * rest2;
    w[i] -= factors[0] * m[i] / (std::sqrt(v[i]) + epsilon) + factors[1] * w[i];
  }
};

}  // namespace rtf
