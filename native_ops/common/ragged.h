// A ragged batch, distributed over threads.
//
// A thread takes its share of the sequences and runs them from first to last frame without waiting for another thread:
// no barrier per frame. They are dealt out by length, longest first, so that threads finish together and the rows still
// running are the first of each share: a ragged batch shrinks instead of being masked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "parallel.h"

namespace rtf {

struct Ragged {
  int64_t frames, batch;
  const int32_t* lengths;  // null: all sequences have all frames
  bool reverse;

  int64_t length(int32_t b) const { return lengths ? lengths[b] : frames; }

  // Index in [frames, batch] of the s-th frame that sequence b runs.
  int64_t at(int32_t b, int64_t step) const { return (reverse ? length(b) - 1 - step : step) * batch + b; }
};

class Shares {
 public:
  Shares(const Ragged& ragged, int n_threads) : order_(ragged.batch) {
    for (int64_t b = 0; b < ragged.batch; ++b) order_[b] = static_cast<int32_t>(b);
    if (ragged.lengths)
      std::stable_sort(order_.begin(), order_.end(),
                       [&](int32_t a, int32_t b) { return ragged.lengths[a] > ragged.lengths[b]; });
    count_ = std::max<int64_t>(1, std::min<int64_t>(n_threads, ragged.batch));
  }

  int64_t count() const { return count_; }

  // The sequences of one share, longest first.
  std::vector<int32_t> share(int64_t index) const {
    std::vector<int32_t> rows;
    for (int64_t at = index; at < static_cast<int64_t>(order_.size()); at += count_) rows.push_back(order_[at]);
    return rows;
  }

 private:
  std::vector<int32_t> order_;
  int64_t count_;
};

// Zeroes frames after the end of sequence b in x [frames, batch, width].
inline void zero_padding(const Ragged& ragged, int32_t b, int64_t width, float* x) {
  for (int64_t t = ragged.length(b); t < ragged.frames; ++t) {
    float* row = x + (t * ragged.batch + b) * width;
    std::fill(row, row + width, 0.0f);
  }
}

// Calls a function for an index. One thread calls it, too: inlined there, all that it does would be compiled twice.
template <typename Function>
__attribute__((noinline)) void run_task(void* function, int64_t index) {
  (*static_cast<const Function*>(function))(index);
}

// Calls function(index) for 0 .. n - 1 on the lent threads.
template <typename Function>
void run_tasks(const RtfThreads& threads, int64_t n, const Function& function) {
  void* arg = const_cast<void*>(static_cast<const void*>(&function));
  if (n == 1) return run_task<Function>(arg, 0);
  threads.run(threads.pool, n, run_task<Function>, arg);
}

// Calls function(first, last) for ranges that partition 0 .. n - 1, one per thread.
template <typename Function>
void run_ranges(const RtfThreads& threads, int64_t n, const Function& function) {
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads.n_threads, n));
  run_tasks(threads, parts, [&](int64_t part) { function(part * n / parts, (part + 1) * n / parts); });
}

}  // namespace rtf
