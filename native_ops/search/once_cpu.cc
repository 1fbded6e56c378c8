#include <algorithm>
#include <limits>
#include <vector>

#include "../common/arena.h"
#include "../common/rows.h"
#include "groups.h"
#include "rows.h"

namespace rtf {
namespace {

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

extern "C" void rtf_once_attention_f32(const RtfOnce* shape, int64_t value_size, float scale, const float* queries,
                                       const float* keys, const float* values, const int32_t* lengths, float* y,
                                       const RtfThreads* threads) {
  const rtf::Attention attention(*shape, value_size, scale, queries, keys, values, lengths, y);
  rtf::run_rows(*threads, shape->batch * shape->heads, rtf::numbers_of_head(*shape, shape->size + value_size),
                [&](int64_t begin, int64_t end) { attention.run(begin, end); });
}
