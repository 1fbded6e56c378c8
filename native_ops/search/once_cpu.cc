#include "../common/block_product.h"
#include "../common/ragged.h"
#include "once.h"
#include "rows.h"

namespace rtf {
namespace {

// Hypotheses whose sums stay in registers, for kVectors of the units of a head.
#if defined(__AVX512F__)
constexpr int kGroup = 4;
#else
constexpr int kGroup = 2;
#endif
constexpr int kVectors = 4;
constexpr int64_t kBlock = kVectors * kLanes;

// function(sequence, head) on the lent threads.
template <typename Function>
void for_heads(const RtfOnce& s, const RtfThreads& threads, const Function& function) {
  run_ranges(threads, s.batch * s.heads, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) function(at / s.heads, at % s.heads);
  });
}

// y[i * y_step] = queries[i * query_step] * key for kCount hypotheses
template <int kCount>
void dots(const float* queries, int64_t query_step, const float* key, int64_t n, float* y, int64_t y_step) {
  Vec sums[kCount] = {};
  by_vectors(n, [&](int64_t u, auto whole, int lanes) {
    constexpr bool kWhole = decltype(whole)::value;
    const Vec k = load_n<kWhole>(key + u, lanes);
    for (int i = 0; i < kCount; ++i) sums[i] += load_n<kWhole>(queries + i * query_step + u, lanes) * k;
  });
  for (int i = 0; i < kCount; ++i) y[i * y_step] = sum_of(sums[i]);
}

// y[i * y_step] [kBlock] = sum over the frames of weights[i * weight_step] times values, for kCount hypotheses
template <int kCount>
void weighted_sums(const float* weights, int64_t weight_step, const float* values, int64_t value_step, int64_t frames,
                   float* y, int64_t y_step) {
  Vec sums[kCount][kVectors];
  multiply_block<kCount, kVectors>(frames, Strided{weights, weight_step, 1}, Columns{values, value_step}, FromZero(),
                                   sums);
#pragma GCC unroll 4
  for (int i = 0; i < kCount; ++i)
#pragma GCC unroll 4
    for (int u = 0; u < kVectors; ++u) store(y + i * y_step + u * kLanes, sums[i][u]);
}

}  // namespace
}  // namespace rtf

extern "C" {

void rtf_once_energies_f32(const RtfOnce* shape, const float* queries, const float* keys, float* y,
                           const RtfThreads* threads) {
  const RtfOnce s = *shape;
  rtf::for_heads(s, *threads, [&](int64_t b, int64_t head) {
    const int64_t query_step = s.heads * s.size, y_step = s.heads * s.frames;
    for (int64_t frame = 0; frame < s.frames; ++frame) {
      const float* key = keys + ((b * s.frames + frame) * s.heads + head) * s.size;
      int64_t entry = b * s.beam;
      const auto run = [&](auto count) {
        for (; entry + count <= (b + 1) * s.beam; entry += count)
          rtf::dots<count>(queries + entry * query_step + head * s.size, query_step, key, s.size,
                           y + entry * y_step + head * s.frames + frame, y_step);
      };
      run(std::integral_constant<int, rtf::kGroup>());
      run(std::integral_constant<int, 1>());
    }
  });
}

void rtf_once_sums_f32(const RtfOnce* shape, const float* weights, const float* values, float* y,
                       const RtfThreads* threads) {
  const RtfOnce s = *shape;
  rtf::for_heads(s, *threads, [&](int64_t b, int64_t head) {
    const int64_t y_step = s.heads * s.size, weight_step = s.heads * s.frames;
    const int64_t whole = s.size / rtf::kBlock * rtf::kBlock, end = (b + 1) * s.beam;
    const float* of_head = values + (b * s.frames * s.heads + head) * s.size;
    for (int64_t u = 0; u < whole; u += rtf::kBlock) {
      int64_t entry = b * s.beam;
      const auto run = [&](auto count) {
        for (; entry + count <= end; entry += count)
          rtf::weighted_sums<count>(weights + entry * weight_step + head * s.frames, weight_step, of_head + u, y_step,
                                    s.frames, y + entry * y_step + head * s.size + u, y_step);
      };
      run(std::integral_constant<int, rtf::kGroup>());
      run(std::integral_constant<int, 1>());
    }
    if (whole == s.size) return;
    for (int64_t entry = b * s.beam; entry < end; ++entry) {
      float* to = y + entry * y_step + head * s.size;
      std::fill(to + whole, to + s.size, 0.0f);
      for (int64_t frame = 0; frame < s.frames; ++frame)
        rtf::add_scaled(weights[entry * weight_step + head * s.frames + frame], of_head + frame * y_step + whole,
                        to + whole, s.size - whole);
    }
  });
}
}
