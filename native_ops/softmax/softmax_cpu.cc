// Softmax, cross entropy and its gradient for a frame at a time: the row is in a core's cache from the first pass on.
#include <algorithm>
#include <cmath>

#include "../common/ragged.h"
#include "../common/vector.h"
#include "softmax.h"

namespace rtf {
namespace {

constexpr int kSums = 4;  // independent sums hide the latency of additions

float largest_in(Vec x, int n) {
  float result = x[0];
  for (int i = 1; i < n; ++i) result = result < x[i] ? x[i] : result;
  return result;
}

float sum_of(const Vec* sums) {
  const Vec all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float result = 0.0f;
  for (int i = 0; i < kLanes; ++i) result += all[i];
  return result;
}

float greatest(const float* z, const float* bias, int64_t labels) {
  Vec most[kSums];
  for (Vec& x : most) x = splat(-INFINITY);
  int64_t k = 0;
  for (; k + kSums * kLanes <= labels; k += kSums * kLanes)
    for (int i = 0; i < kSums; ++i) {
      const int64_t at = k + i * kLanes;
      most[i] = at_least(load(z + at) + load(bias + at), most[i]);
    }
  const Vec two[2] = {at_least(most[0], most[1]), at_least(most[2], most[3])};
  float result = largest_in(at_least(two[0], two[1]), kLanes);
  for (; k < labels; ++k) result = std::max(result, z[k] + bias[k]);
  return result;
}

// Sums of exp(z + bias - most) and, if wanted, of z + bias - most; the exponentials go to `out` unless it is null.
template <bool kStore, bool kPlainSum>
void exponentials(const float* z, const float* bias, int64_t labels, float most, float* out, float* sum, float* plain) {
  Vec sums[kSums] = {}, plain_sums[kSums] = {};
  int slot = 0;
  by_vectors(labels, [&](int64_t k, auto whole, int n) {
    constexpr bool kWhole = decltype(whole)::value;
    const Vec x = load_n<kWhole>(z + k, n) + load_n<kWhole>(bias + k, n) - splat(most);
    Vec scale, rest;
    exp_parts(x, &scale, &rest);
    Vec e = scale + scale * rest, x_used = x;
    if (!kWhole)
      for (int i = n; i < kLanes; ++i) e[i] = x_used[i] = 0.0f;
    sums[slot] += e;
    if (kPlainSum) plain_sums[slot] += x_used;
    if (kStore) store_n<kWhole>(out + k, e, n);
    slot = (slot + 1) % kSums;
  });
  *sum = sum_of(sums);
  *plain = kPlainSum ? sum_of(plain_sums) : 0.0f;
}

void frame(const RtfSoftmaxCe& s, const float* z, const float* bias, int32_t label, float* value, float* error,
           float* gradient) {
  const float of_label = z[label] + bias[label], most = greatest(z, bias, s.labels);
  bool wrong = of_label < most;  // among equal ones the first counts
  if (of_label == most)
    for (int64_t k = 0; k < label && !wrong; ++k) wrong = z[k] + bias[k] == most;
  *error = wrong ? 1.0f : 0.0f;
  float sum, plain;
  if (gradient) {
    if (s.off != 0.0f)
      exponentials<true, true>(z, bias, s.labels, most, gradient, &sum, &plain);
    else
      exponentials<true, false>(z, bias, s.labels, most, gradient, &sum, &plain);
  } else if (s.off != 0.0f) {
    exponentials<false, true>(z, bias, s.labels, most, nullptr, &sum, &plain);
  } else {
    exponentials<false, false>(z, bias, s.labels, most, nullptr, &sum, &plain);
  }
  const float x = of_label - most;
  float c = std::log(sum) - (s.on - s.off) * x;
  if (s.off != 0.0f) c -= s.off * plain;
  c -= s.entropy;
  float weight = 1.0f, slope = 0.0f;
  if (s.focal != 0.0f) {
    const float p = std::exp(x) / sum, missed = p == p ? std::max(1.0f - p, 1e-12f) : p;
    weight = std::pow(missed, s.focal);
    slope = s.focal * c * weight / missed * (1.0f - missed);
  }
  *value = c * weight;
  if (!gradient) return;
  const Vec factor = splat((weight + slope) / sum), less = splat(weight * s.off);
  by_vectors(s.labels, [&](int64_t k, auto whole, int n) {
    constexpr bool kWhole = decltype(whole)::value;
    store_n<kWhole>(gradient + k, load_n<kWhole>(gradient + k, n) * factor - less, n);
  });
  gradient[label] -= weight * (s.on - s.off) + slope;
}

}  // namespace
}  // namespace rtf

extern "C" {

void rtf_softmax_ce_f32(const RtfSoftmaxCe* shape, const float* z, const float* bias, const int32_t* target,
                        float* values, float* errors, float* gradient, const RtfThreads* threads) {
  const RtfSoftmaxCe s = *shape;
  rtf::run_ranges(*threads, s.frames, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      rtf::frame(s, z + t * s.labels, bias, target[t], values + t, errors + t,
                 gradient ? gradient + t * s.labels : nullptr);
  });
}
}
