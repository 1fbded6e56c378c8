#include <algorithm>
#include <limits>
#include <vector>

#include "../common/arena.h"
#include "../common/block_product.h"
#include "../common/rows.h"
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

// Numbers of the frames of a head of a sequence, for each hypothesis that reads them.
int64_t numbers_of_head(const RtfOnce& s, int64_t of_frame) {
  return std::max<int64_t>(1, s.beam * s.frames * of_frame);
}

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

// Energies, softmax and sums of a group of hypotheses, for neighbouring heads of a sequence. Frames are read in the
// order of the memory; while the keys are, the values are prefetched, and while the values are, the keys of the next
// sequence, since each is used once in a step.
class Attention {
 public:
  Attention(const RtfOnce& shape, int64_t value_size, float scale, const float* queries, const float* keys,
            const float* values, const int32_t* lengths, float* y)
      : s_(shape),
        value_(value_size),
        scale_(scale),
        queries_(queries),
        keys_(keys),
        values_(values),
        lengths_(lengths),
        y_(y) {}

  // Heads begin .. end - 1 of all sequences, counted over the sequences.
  void run(int64_t begin, int64_t end) const {
    std::vector<float> weights;
    for (int64_t next; begin < end; begin = next) {
      const int64_t b = begin / s_.heads;
      next = std::min(end, (b + 1) * s_.heads);
      const Range heads{begin % s_.heads, begin % s_.heads + next - begin};
      for_groups(b * s_.beam, (b + 1) * s_.beam, [&](auto count, int64_t entry) {
        const bool first = entry == b * s_.beam;
        group<count>(b, entry, heads, first, first && b + 1 < s_.batch, &weights);
      });
    }
  }

 private:
  const float* row(const float* x, int64_t b, int64_t frame, int64_t head, int64_t size) const {
    return x + ((b * s_.frames + frame) * s_.heads + head) * size;
  }

  int64_t length(int64_t entry) const {
    return lengths_ ? std::max<int64_t>(0, std::min<int64_t>(s_.frames, lengths_[entry])) : s_.frames;
  }

  static void prefetch(const float* from, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) prefetch_to_read(from + i);
  }

  // weights: [frames, a vector or more], memory for a group
  template <int kCount>
  void group(int64_t b, int64_t entry, Range heads, bool reads_values, bool reads_keys,
             std::vector<float>* weights) const {
    const int64_t n = heads.size(), width = whole_vectors(kCount * n);
    int64_t frames = 0;
    for (int i = 0; i < kCount; ++i) frames = std::max(frames, length(entry + i));
    weights->assign(std::max<int64_t>(1, frames) * width, 0.0f);
    energies<kCount>(b, entry, heads, frames, reads_values, weights->data(), width);
    mask<kCount>(entry, n, frames, std::numeric_limits<float>::lowest(), weights->data(), width);
    if (frames) softmax_of_columns(weights->data(), frames, width);
    mask<kCount>(entry, n, frames, 0.0f, weights->data(), width);
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      const int64_t at = head - heads.begin;
      if (reads_keys)
        for (int64_t frame = at * s_.frames / n; frame < (at + 1) * s_.frames / n; ++frame)
          prefetch(row(keys_, b + 1, frame, heads.begin, s_.size), n * s_.size);
      sums<kCount>(b, entry, head, frames, Strided{weights->data() + at, n, width});
    }
  }

  // weights [frames, kCount * heads] = scale * queries * keys
  template <int kCount>
  void energies(int64_t b, int64_t entry, Range heads, int64_t frames, bool reads_values, float* weights,
                int64_t width) const {
    constexpr int kPairs = kLanes / kCount;  // of a frame and a head, whose sums over the lanes are made at once
    const int64_t n = heads.size(), query_step = s_.heads * s_.size;
    Vec sums[kLanes] = {};
    float* to[kPairs];
    int pairs = 0;
    const auto write = [&] {
      float found[kLanes];
      store(found, sums_of(sums) * splat(scale_));
      for (int pair = 0; pair < pairs; ++pair)
        for (int i = 0; i < kCount; ++i) to[pair][i * n] = found[pair * kCount + i];
      pairs = 0;
    };
    for (int64_t frame = 0; frame < frames; ++frame) {
      if (reads_values) prefetch(row(values_, b, frame, heads.begin, value_), n * value_);
      for (int64_t head = heads.begin; head < heads.end; ++head) {
        const float *key = row(keys_, b, frame, head, s_.size), *query = queries_ + entry * query_step + head * s_.size;
        Vec products[kCount] = {};
        by_vectors(s_.size, [&](int64_t u, auto whole, int lanes) {
          constexpr bool kWhole = decltype(whole)::value;
          const Vec k = load_n<kWhole>(key + u, lanes);
          for (int i = 0; i < kCount; ++i) products[i] += load_n<kWhole>(query + i * query_step + u, lanes) * k;
        });
        for (int i = 0; i < kCount; ++i) sums[pairs * kCount + i] = products[i];
        to[pairs++] = weights + frame * width + head - heads.begin;
        if (pairs == kPairs) write();
      }
    }
    write();
  }

  // Sets the weights of frames behind the end of a sequence.
  template <int kCount>
  void mask(int64_t entry, int64_t n, int64_t frames, float x, float* weights, int64_t width) const {
    for (int i = 0; i < kCount; ++i)
      for (int64_t frame = length(entry + i); frame < frames; ++frame)
        std::fill_n(weights + frame * width + i * n, n, x);
  }

  template <int kCount>
  void sums(int64_t b, int64_t entry, int64_t head, int64_t frames, const Strided& weights) const {
    const int64_t step = s_.heads * value_, whole = value_ / kBlock * kBlock;
    const float* values = row(values_, b, 0, head, value_);
    float* y = y_ + entry * step + head * value_;
    for (int64_t u = 0; u < whole; u += kBlock) weighted_sums<kCount>(weights, values + u, step, frames, y + u, step);
    if (whole == value_) return;
    for (int i = 0; i < kCount; ++i) {
      std::fill(y + i * step + whole, y + i * step + value_, 0.0f);
      for (int64_t frame = 0; frame < frames; ++frame)
        add_scaled(weights(i, frame), values + frame * step + whole, y + i * step + whole, value_ - whole);
    }
  }

  const RtfOnce s_;
  int64_t value_;
  float scale_;
  const float *queries_, *keys_, *values_;
  const int32_t* lengths_;
  float* y_;
};

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

void rtf_once_attention_f32(const RtfOnce* shape, int64_t value_size, float scale, const float* queries,
                            const float* keys, const float* values, const int32_t* lengths, float* y,
                            const RtfThreads* threads) {
  const rtf::Attention attention(*shape, value_size, scale, queries, keys, values, lengths, y);
  rtf::run_rows(*threads, shape->batch * shape->heads, rtf::numbers_of_head(*shape, shape->size + value_size),
                [&](int64_t begin, int64_t end) { attention.run(begin, end); });
}
}
