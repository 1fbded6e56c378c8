#include <cmath>

#include "../common/ragged.h"
#include "best_labels.h"
#include "rows.h"

namespace rtf {
namespace {

constexpr int64_t kVectors = 4;  // compared at once

inline bool any_above(const float* x, Vec limit) {
  IVec above{};
  for (int64_t v = 0; v < kVectors; ++v) above |= load(x + v * kLanes) > limit;
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(above), reinterpret_cast<__m512i>(above)) != 0;
#else
  int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= above[i];
  return any != 0;
#endif
}

// The highest entries of a row so far, highest first.
class Best {
 public:
  Best(float* values, int32_t* indices, int64_t count) : values_(values), indices_(indices), count_(count) {}

  bool is_full() const { return found_ == count_; }
  float limit() const { return values_[count_ - 1]; }

  // An entry behind all others so far, which goes below equal ones.
  void add(float x, int64_t index) {
    if (is_full() && !(x > limit())) return;
    int64_t at = is_full() ? count_ - 1 : found_++;
    for (; at > 0 && x > values_[at - 1]; --at) {
      values_[at] = values_[at - 1];
      indices_[at] = indices_[at - 1];
    }
    values_[at] = x;
    indices_[at] = static_cast<int32_t>(index);
  }

 private:
  float* values_;
  int32_t* indices_;
  int64_t count_, found_ = 0;
};

void find_best(const float* x, int64_t labels, Best best) {
  int64_t u = 0;
  while (!best.is_full()) {
    best.add(x[u], u);
    ++u;
  }
  for (; u + kVectors * kLanes <= labels; u += kVectors * kLanes)
    if (any_above(x + u, splat(best.limit())))
      for (int64_t i = u; i < u + kVectors * kLanes; ++i) best.add(x[i], i);
  for (; u < labels; ++u) best.add(x[u], u);
}

// The first n entries; the others are 0.
inline Vec first_of(Vec x, int n) {
  float entries[kLanes];
  store(entries, x);
  return load_part(entries, n);
}

// log(sum of exp(x - highest)); the sum is rounded before the logarithm, as in TensorFlow's log softmax.
float log_sum(const float* x, int64_t n, float highest) {
  double sum = 0;
  Vec part{};
  by_vectors(n, [&](int64_t u, auto whole, int lanes) {
    if (u % (64 * kLanes) == 0) {  // few terms in float
      sum += sum_of(part);
      part = Vec{};
    }
    Vec scale, rest;
    exp_parts(load_n<decltype(whole)::value>(x + u, lanes) - splat(highest), &scale, &rest);
    const Vec y = scale + scale * rest;
    part += decltype(whole)::value ? y : first_of(y, lanes);
  });
  return std::log(static_cast<float>(sum + sum_of(part)));
}

}  // namespace
}  // namespace rtf

extern "C" void rtf_best_labels_f32(int64_t rows, int64_t labels, int64_t count, const float* x, float* values,
                                    int32_t* indices, float* log_sums, const RtfThreads* threads) {
  rtf::run_ranges(*threads, rows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      rtf::find_best(x + row * labels, labels, {values + row * count, indices + row * count, count});
      log_sums[row] = rtf::log_sum(x + row * labels, labels, values[row * count]);
    }
  });
}
