#include <algorithm>
#include <cmath>
#include <vector>

#include "../common/arena.h"
#include "../common/block_product.h"
#include "../common/rows.h"
#include "attention.h"
#include "rows.h"

namespace rtf {
namespace {

// Entries that a thread takes at once. Neighbours share most frames of their past, which then come from the cache.
constexpr int64_t kBlock = 12;
constexpr int64_t kAhead = 6;  // frames are scattered, so they are prefetched so many entries before they are used
constexpr int64_t kSteps = 8;  // whose values are added to an entry at once, as its sums stay in registers

class Step {
 public:
  Step(const RtfBeamAttention& shape, const float* qkv, const int32_t* rows, const float* shift, float* keys,
       float* values, float* y)
      : s_(shape), qkv_(qkv), rows_(rows), shift_(shift), keys_(keys), values_(values), y_(y) {}

  void run(int64_t begin, int64_t end) const {
    std::vector<float> queries(kBlock * s_.heads * s_.key), weights;
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t n = std::min(kBlock, end - first), width = whole_vectors(n * s_.heads);
      weights.resize((s_.steps + 1) * width);
      for (int64_t i = 0; i < n; ++i) split(first + i, queries.data() + i * s_.heads * s_.key);
      energies(first, n, queries.data(), weights.data(), width);
      if (shift_) add_shift(n, queries.data(), weights.data(), width);
      softmax_of_columns(weights.data(), s_.steps + 1, width);
      sums(first, n, weights.data(), width);
    }
  }

 private:
  // The frame of an entry in a step, as an index into [capacity * entries].
  int64_t frame(int64_t entry, int64_t step) const {
    return step * s_.entries + (step < s_.steps ? rows_[entry * s_.steps + step] : entry);
  }

  // Keeps the key and the value of this step, and scales the query.
  void split(int64_t entry, float* query) const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(s_.key));
    float* key = keys_ + frame(entry, s_.steps) * s_.heads * s_.key;
    float* value = values_ + frame(entry, s_.steps) * s_.heads * s_.value;
    const float* from = qkv_ + entry * s_.heads * (2 * s_.key + s_.value);
    for (int64_t h = 0; h < s_.heads; ++h) {
      for (int64_t k = 0; k < s_.key; ++k) *query++ = scale * *from++;
      for (int64_t k = 0; k < s_.key; ++k) *key++ = *from++;
      for (int64_t k = 0; k < s_.value; ++k) *value++ = *from++;
    }
  }

  // Prefetches the frame of the i-th entry of a block; one behind the block is one `next` steps later.
  void prefetch(const float* frames, int64_t first, int64_t i, int64_t n, int64_t step, int64_t units,
                int64_t next = 1) const {
    step += i / n * next;
    i %= n;
    if (step > s_.steps || (i > 0 && frame(first + i, step) == frame(first + i - 1, step))) return;
    const float* from = frames + frame(first + i, step) * units;
    for (int64_t u = 0; u < units; u += 16) prefetch_to_read(from + u);
  }

  // The lanes of the last vector of a step that are behind the entries have any value.
  void energies(int64_t first, int64_t n, const float* queries, float* weights, int64_t width) const {
    Vec products[kLanes] = {};  // of as many heads, whose sums over the lanes are made at once
    for (int64_t step = 0; step <= s_.steps; ++step, weights += width) {
      int64_t at = 0;
      for (int64_t i = 0; i < n; ++i) {
        const float* key = keys_ + frame(first + i, step) * s_.heads * s_.key;
        prefetch(keys_, first, i + kAhead, n, step, s_.heads * s_.key);
        const float* query = queries + i * s_.heads * s_.key;
        for (int64_t h = 0; h < s_.heads; ++h) {
          products[at++ % kLanes] = products_of(query + h * s_.key, key + h * s_.key, s_.key);
          if (at % kLanes == 0) store(weights + at - kLanes, sums_of(products));
        }
      }
      if (at % kLanes) store(weights + at / kLanes * kLanes, sums_of(products));
    }
  }

  // Adds the products of queries and vectors of the steps, which all entries and heads share.
  void add_shift(int64_t n, const float* queries, float* weights, int64_t width) const {
    for (int64_t step = 0; step <= s_.steps; ++step, weights += width)
      for (int64_t i = 0; i < n * s_.heads; ++i)
        weights[i] += dot(queries + i * s_.key, shift_ + step * s_.key, s_.key);
  }

  void sums(int64_t first, int64_t n, const float* weights, int64_t width) const {
    const int64_t units = s_.heads * s_.value;
    std::fill(y_ + first * units, y_ + (first + n) * units, 0.0f);
    for (int64_t step = 0; step <= s_.steps; step += kSteps) {
      const int64_t n_steps = std::min(kSteps, s_.steps + 1 - step);
      for (int64_t i = 0; i < n; ++i) {
        const float* frames[kSteps];
        for (int64_t s = 0; s < n_steps; ++s) frames[s] = values_ + frame(first + i, step + s) * units;
        for (int64_t h = 0; h < s_.heads; ++h) {
          for (int64_t s = h * n_steps / s_.heads; s < (h + 1) * n_steps / s_.heads; ++s)
            prefetch(values_, first, i + 1, n, step + s, units, kSteps);
          const int64_t at = h * s_.value;
          add_frames(weights + step * width + i * s_.heads + h, width, frames, at, n_steps,
                     y_ + (first + i) * units + at);
        }
      }
    }
  }

  // y [value] += the sum over the steps of weights[step * width] times frames[step][at + ...]
  void add_frames(const float* weights, int64_t width, const float* const* frames, int64_t at, int64_t n_steps,
                  float* y) const {
    constexpr int kVectors = 4;
    int64_t u = 0;
    for (; u + kVectors * kLanes <= s_.value; u += kVectors * kLanes) {
      Vec sums[1][kVectors];
      multiply_block<1, kVectors>(
          n_steps, Strided{weights, 0, width},
          [&](int64_t step, int v) { return load(frames[step] + at + u + v * kLanes); },
          [&](int, int v) { return load(y + u + v * kLanes); }, sums);
      for (int v = 0; v < kVectors; ++v) store(y + u + v * kLanes, sums[0][v]);
    }
    for (int64_t step = 0; u < s_.value && step < n_steps; ++step)
      add_scaled(weights[step * width], frames[step] + at + u, y + u, s_.value - u);
  }

  const RtfBeamAttention s_;
  const float* qkv_;
  const int32_t* rows_;
  const float* shift_;
  float *keys_, *values_, *y_;
};

}  // namespace
}  // namespace rtf

extern "C" void rtf_beam_attention_f32(const RtfBeamAttention* shape, const float* qkv, const int32_t* rows,
                                       const float* shift, float* keys, float* values, float* y,
                                       const RtfThreads* threads) {
  const rtf::Step step(*shape, qkv, rows, shift, keys, values, y);
  const int64_t numbers = (shape->steps + 1) * shape->heads * (shape->key + shape->value);
  rtf::run_rows(*threads, shape->entries, numbers, [&](int64_t begin, int64_t end) { step.run(begin, end); });
}
