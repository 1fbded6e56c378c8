#include <algorithm>

#include "../common/rows.h"
#include "groups.h"
#include "once_products.h"
#include "rows.h"

namespace rtf {
namespace {

// function(sequence, head) on the lent threads.
template <typename Function>
void for_heads(const RtfOnce& s, const RtfThreads& threads, const Function& function) {
  run_rows(threads, s.batch * s.heads, numbers_of_head(s, s.size), [&](int64_t begin, int64_t end) {
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
      rtf::for_groups(b * s.beam, (b + 1) * s.beam, [&](auto count, int64_t entry) {
        rtf::dots<count>(queries + entry * query_step + head * s.size, query_step, key, s.size,
                         y + entry * y_step + head * s.frames + frame, y_step);
      });
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
    for (int64_t u = 0; u < whole; u += rtf::kBlock)
      rtf::for_groups(b * s.beam, end, [&](auto count, int64_t entry) {
        const rtf::Strided of_group{weights + entry * weight_step + head * s.frames, weight_step, 1};
        rtf::weighted_sums<count>(of_group, of_head + u, y_step, s.frames, y + entry * y_step + head * s.size + u,
                                  y_step);
      });
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
