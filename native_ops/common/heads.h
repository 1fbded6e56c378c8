// Recurrences with heads: a task is a head of a sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "arena.h"
#include "ragged.h"
#include "sequences.h"
#include "vector.h"

namespace rtf {

// Floats that begin at a cache line; 0 at first.
class Floats {
 public:
  explicit Floats(int64_t size) : memory_(size + 16) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(memory_.data());
    data_ = memory_.data() + (64 - at % 64) % 64 / sizeof(float);
  }

  float* at(int64_t index) { return data_ + index; }

 private:
  std::vector<float> memory_;
  float* data_;
};

// A head of a sequence; units of the sequences are the heads.
struct Head {
  const RtfSequences& all;
  Ragged ragged;
  int32_t b;
  int64_t h;

  int64_t length() const { return ragged.length(b); }
  // Row of the s-th frame that runs in arrays [T, B, H, ...].
  int64_t row(int64_t s) const { return ragged.at(b, s) * all.units + h; }
  // Row in arrays [B, H, ...].
  int64_t state_row() const { return b * all.units + h; }
};

// One of the arrays [T, B, H, width].
template <typename T>
struct HeadArray {
  T* data;
  int64_t width;

  T* of(const Head& head, int64_t s) const { return data + head.row(s) * width; }
};

inline void clear_padding(const Head& head, const HeadArray<float>& x) {
  for (int64_t t = head.length(); t < head.all.frames; ++t) {
    float* row = x.data + ((t * head.all.batch + head.b) * head.all.units + head.h) * x.width;
    std::fill(row, row + x.width, 0.0f);
  }
}

// Calls function(head) for all heads, those of the longest sequences first.
template <typename Function>
void for_heads(const RtfSequences& all, const RtfThreads& threads, const Function& function) {
  if (all.batch == 0) return;
  const Ragged ragged{all.frames, all.batch, all.lengths, all.reverse != 0};
  const std::vector<int32_t> order = Shares(ragged, 1).share(0);
  run_tasks(threads, all.batch * all.units, [&](int64_t task) {
    function(Head{all, ragged, order[task / all.units], task % all.units});
  });
}

// out = exp(x), for n numbers.
inline void exponentials(const float* x, int64_t n, float* out) {
  by_vectors(n, [&](int64_t u, auto whole, int lanes) {
    Vec scale, rest;
    exp_parts(load_n<decltype(whole)::value>(x + u, lanes), &scale, &rest);
    store_n<decltype(whole)::value>(out + u, scale + scale * rest, lanes);
  });
}

}  // namespace rtf
