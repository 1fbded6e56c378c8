// Hypotheses whose products with the frames of a sequence are made together, and their sums over the frames.
#pragma once

#include <algorithm>
#include <type_traits>

#include "../common/block_product.h"
#include "../common/parallel.h"
#include "once.h"

namespace rtf {

// Hypotheses whose sums stay in registers, for kVectors of the units of a head.
#if defined(__AVX512F__)
constexpr int kGroup = 4;
#else
constexpr int kGroup = 2;
#endif
constexpr int kVectors = 4;
constexpr int64_t kBlock = kVectors * kLanes;

// Numbers of the frames of a head of a sequence, for each hypothesis that reads them.
inline int64_t numbers_of_head(const RtfOnce& s, int64_t of_frame) {
  return std::max<int64_t>(1, s.beam * s.frames * of_frame);
}

// y[i * y_step] [kBlock] = sum over the frames of weights(i, frame) times values, for kCount hypotheses
template <int kCount>
void weighted_sums(const Strided& weights, const float* values, int64_t value_step, int64_t frames, float* y,
                   int64_t y_step) {
  Vec sums[kCount][kVectors];
  multiply_block<kCount, kVectors>(frames, weights, Columns{values, value_step}, FromZero(), sums);
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i)
#pragma GCC unroll 4
    for (int u = 0; u < kVectors; ++u) store(y + i * y_step + u * kLanes, sums[i][u]);
}

// function(count as a constant, first entry) for hypotheses begin .. end - 1 in groups.
template <typename Function>
void for_groups(int64_t begin, int64_t end, const Function& function) {
  for (; begin + kGroup <= end; begin += kGroup) function(std::integral_constant<int, kGroup>(), begin);
  for (; begin < end; ++begin) function(std::integral_constant<int, 1>(), begin);
}

}  // namespace rtf
