#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../common/ragged.h"
#include "best_labels.h"
#include "rows.h"

namespace rtf {
namespace {

constexpr int64_t kVectors = 4;       // compared at once
constexpr int64_t kGroupsOfEach = 8;  // for each entry that is wanted: two of them are seldom in one group
constexpr int64_t kLeastCount = 4;    // with fewer, entries that don't stay cost less than to look for a limit

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

// The order of the floats as that of integers; the conversion is its own inverse.
inline IVec ordered(IVec bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }
inline int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); }

// The highest entries of groups [vectors, kLanes] that share all whole blocks of a row, in the order of integers. NaN
// is left out.
void highest_of_groups(const float* x, int64_t blocks, int64_t vectors, int32_t* highest) {
  for (int64_t first = 0; first < vectors; ++first) {
    Vec most = splat(-std::numeric_limits<float>::infinity());
    for (int64_t block = first; block < blocks; block += vectors)
      for (int64_t v = 0; v < kVectors; ++v) {
        const Vec entries = load(x + (block * kVectors + v) * kLanes);
        most = entries > most ? entries : most;
      }
    IVec bits;
    std::memcpy(&bits, &most, sizeof(bits));
    bits = ordered(bits);
    std::memcpy(highest + first * kLanes, &bits, sizeof(bits));
  }
}

// n is a multiple of kLanes.
int64_t count_above(const int32_t* x, int64_t n, int32_t limit) {
  const IVec limits = limit - IVec{};
  IVec counts{};
  for (int64_t i = 0; i < n; i += kLanes) {
    IVec part;
    std::memcpy(&part, x + i, sizeof(part));
    counts -= part > limits;
  }
  int64_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += counts[i];
  return sum;
}

// A value that at least `count` entries exceed, and few more; -inf if groups don't show one. It is found by bisection
// over the highest entries of groups, which takes fewer comparisons than to sort entries that don't stay.
float limit_of_best(const float* x, int64_t labels, int64_t count, int32_t* highest) {
  const int64_t blocks = labels / (kVectors * kLanes);
  const int64_t vectors = std::min(blocks, (kGroupsOfEach * count + kLanes - 1) / kLanes), groups = vectors * kLanes;
  const float infinity = std::numeric_limits<float>::infinity();
  if (count < kLeastCount || groups < count) return -infinity;
  highest_of_groups(x, blocks, vectors, highest);
  const auto key = [](float limit) {
    int32_t bits;
    std::memcpy(&bits, &limit, sizeof(bits));
    return ordered(bits);
  };
  int32_t low = key(-infinity);
  int64_t high = key(infinity), above = count_above(highest, groups, low);  // none is above high
  if (above < count) return -infinity;
  while (above > count + count / 8 && high - low > 1) {
    const int32_t middle = static_cast<int32_t>(low + (high - low) / 2);
    const int64_t found = count_above(highest, groups, middle);
    if (found < count) {
      high = middle;
    } else {
      low = middle;
      above = found;
    }
  }
  const int32_t bits = ordered(low);
  float limit;
  std::memcpy(&limit, &bits, sizeof(limit));
  // TensorFlow's threads compare denormal numbers as zeros.
  const float least = std::numeric_limits<float>::min();
  return std::abs(limit) < least ? -least : limit;
}

// limit: at least as many entries as are wanted exceed it, or it is -inf.
void find_best(const float* x, int64_t labels, Best best, float limit) {
  int64_t u = 0;
  if (limit == -std::numeric_limits<float>::infinity()) {
    for (; !best.is_full(); ++u) best.add(x[u], u);
    limit = best.limit();
  }
  const auto add = [&](int64_t i) {
    if (!(x[i] > limit)) return;
    best.add(x[i], i);
    if (best.is_full()) limit = best.limit();
  };
  for (; u + kVectors * kLanes <= labels; u += kVectors * kLanes)
    if (any_above(x + u, splat(limit)))
      for (int64_t i = u; i < u + kVectors * kLanes; ++i) add(i);
  for (; u < labels; ++u) add(u);
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
    std::vector<int32_t> highest(labels / rtf::kVectors);
    for (int64_t row = begin; row < end; ++row) {
      const float limit = rtf::limit_of_best(x + row * labels, labels, count, highest.data());
      rtf::find_best(x + row * labels, labels, {values + row * count, indices + row * count, count}, limit);
      log_sums[row] = rtf::log_sum(x + row * labels, labels, values[row * count]);
    }
  });
}
