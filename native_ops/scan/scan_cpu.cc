// Linear recurrences on the CPU. Memory bandwidth decides: each array is read or written once, in order. A task has a
// range of the columns (sequence, unit), small enough for its state to stay in the cache over all frames.
#include <algorithm>
#include <initializer_list>

#include "../common/ragged.h"
#include "../common/vector.h"
#include "scan.h"

namespace rtf {
namespace {

constexpr int64_t kColumns = 4096;    // of a task, at most: 16 KB of state in the first cache
constexpr int64_t kCached = 8 << 20;  // bytes of results from which on they are written past the caches
constexpr int64_t kLeast = 1024;      // of a task where lengths differ: smaller tasks balance better

template <int kParts>
struct Numbers {
  Vec part[kParts];
};

template <int kParts, bool kWhole>
Numbers<kParts> load_numbers(const float* const* x, int64_t at, int n) {
  Numbers<kParts> numbers;
  for (int p = 0; p < kParts; ++p) numbers.part[p] = load_n<kWhole>(x[p] + at, n);
  return numbers;
}

template <int kParts, bool kWhole>
void store_numbers(float* const* x, int64_t at, const Numbers<kParts>& numbers, int n) {
  for (int p = 0; p < kParts; ++p) store_n<kWhole>(x[p] + at, numbers.part[p], n);
}

// Stores where nobody reads soon: kStream is for whole vectors that are aligned.
template <int kParts, bool kWhole, bool kStream>
void put_numbers(float* const* x, int64_t at, const Numbers<kParts>& numbers, int n) {
  for (int p = 0; p < kParts; ++p)
    if (kWhole && kStream)
      stream(x[p] + at, numbers.part[p]);
    else
      store_n<kWhole>(x[p] + at, numbers.part[p], n);
}

// Whether results are written past the caches: they are larger than these, and rows begin at multiples of a vector.
template <int kParts>
bool streams(const RtfScanShape& shape, std::initializer_list<float* const*> results) {
  const RtfSequences& s = shape.sequences;
  const int64_t size = s.frames * s.batch * s.units * kParts * static_cast<int64_t>(results.size());
  bool aligned = s.units % kLanes == 0 && size * static_cast<int64_t>(sizeof(float)) > kCached;
  for (float* const* x : results)
    for (int p = 0; p < kParts; ++p) aligned &= reinterpret_cast<uintptr_t>(x[p]) % sizeof(Vec) == 0;
  return aligned;
}

// Processors stop at the end of a page; the next frame is elsewhere.
template <int kParts>
void prefetch_numbers(const float* const* x, int64_t at) {
  for (int p = 0; p < kParts; ++p) prefetch_to_read(x[p] + at);
}

// x y + z, or with kConjugate x* y + z.
template <bool kConjugate, int kParts>
Numbers<kParts> multiply_add(const Numbers<kParts>& x, const Numbers<kParts>& y, Numbers<kParts> z) {
  if constexpr (kParts == 1) {
    z.part[0] += x.part[0] * y.part[0];
  } else {
    const Vec im = kConjugate ? -x.part[1] : x.part[1];
    z.part[0] += x.part[0] * y.part[0];
    z.part[0] -= im * y.part[1];
    z.part[1] += x.part[0] * y.part[1];
    z.part[1] += im * y.part[0];
  }
  return z;
}

// function(sequence, first unit, end) for the parts of rows that columns first .. end - 1 consist of.
template <typename Function>
void by_rows(int64_t first, int64_t end, int64_t units, const Function& function) {
  while (first < end) {
    const int64_t row = first / units, from = first - row * units, to = std::min(units, from + end - first);
    function(row, from, to);
    first += to - from;
  }
}

template <int kParts>
void fill_part(float* const* x, int64_t at, int64_t n) {
  for (int p = 0; p < kParts; ++p) std::fill(x[p] + at, x[p] + at + n, 0.0f);
}

template <int kParts>
void copy_part(const float* const* from, float* const* to, int64_t begin, int64_t end) {
  for (int p = 0; p < kParts; ++p) std::copy(from[p] + begin, from[p] + end, to[p] + begin);
}

// Calls task(first column, end) on the threads.
template <typename Task>
void share_columns(const RtfScanShape& shape, const RtfThreads& threads, const Task& task) {
  const int64_t columns = shape.sequences.batch * shape.sequences.units, vectors = (columns + kLanes - 1) / kLanes;
  if (columns == 0) return;
  int64_t tasks = std::max<int64_t>(threads.n_threads, (columns * shape.parts + kColumns - 1) / kColumns);
  if (shape.sequences.lengths) tasks = std::max(tasks, std::min<int64_t>(4 * threads.n_threads, columns / kLeast));
  tasks = std::min(tasks, vectors);
  run_tasks(threads, tasks, [&](int64_t i) {
    task(i * vectors / tasks * kLanes, std::min(columns, (i + 1) * vectors / tasks * kLanes));
  });
}

// The frame of step s: all sequences are at the same frame, and wait while it is in their padding.
inline int64_t frame_at(const RtfSequences& s, int64_t step) { return s.reverse ? s.frames - 1 - step : step; }

inline bool runs(const RtfSequences& s, int64_t b, int64_t t) { return !s.lengths || t < s.lengths[b]; }

template <int kParts, bool kStream>
void forward(const RtfScanShape& shape, const float* const* a, const float* const* b, const float* const* h0,
             float* const* h, float* const* h_last, const RtfThreads& threads) {
  const RtfSequences& s = shape.sequences;
  const int64_t row_size = s.batch * s.units;
  share_columns(shape, threads, [&](int64_t first, int64_t end) {
    copy_part<kParts>(h0, h_last, first, end);
    for (int64_t step = 0; step < s.frames; ++step) {
      const int64_t t = frame_at(s, step), ahead = step + 1 < s.frames ? (frame_at(s, step + 1) - t) * row_size : 0;
      by_rows(first, end, s.units, [&](int64_t row, int64_t from, int64_t to) {
        const int64_t state = row * s.units + from, at = t * row_size + state, factor = shape.constant ? from : at;
        if (!runs(s, row, t)) return fill_part<kParts>(h, at, to - from);
        by_vectors(to - from, [&](int64_t u, auto whole, int n) {
          constexpr bool kWhole = decltype(whole)::value;
          if (ahead) prefetch_numbers<kParts>(b, at + u + ahead);
          if (ahead && !shape.constant) prefetch_numbers<kParts>(a, at + u + ahead);
          const auto before = load_numbers<kParts, kWhole>(h_last, state + u, n);
          const auto now = multiply_add<false>(load_numbers<kParts, kWhole>(a, factor + u, n), before,
                                               load_numbers<kParts, kWhole>(b, at + u, n));
          store_numbers<kParts, kWhole>(h_last, state + u, now, n);
          put_numbers<kParts, kWhole, kStream>(h, at + u, now, n);
        });
      });
    }
    if (kStream) stream_end();
  });
}

// Per column, from the last step to the first: g = dh[t] + a*[t+1] g; db[t] = g; da[t] = h*[t-1] g. dh0 has a* g.
template <int kParts, bool kStream>
void backward(const RtfScanShape& shape, const float* const* a, const float* const* h0, const float* const* h,
              const float* const* dh, const float* const* dh_last, float* const* da, float* const* db,
              float* const* dh0, const RtfThreads& threads) {
  const RtfSequences& s = shape.sequences;
  const int64_t row_size = s.batch * s.units;
  share_columns(shape, threads, [&](int64_t first, int64_t end) {
    copy_part<kParts>(dh_last, dh0, first, end);
    if (shape.constant) fill_part<kParts>(da, first, end - first);
    for (int64_t step = s.frames - 1; step >= 0; --step) {
      const int64_t t = frame_at(s, step), previous = s.reverse ? t + 1 : t - 1;
      const int64_t ahead = step > 0 ? (frame_at(s, step - 1) - t) * row_size : 0;
      by_rows(first, end, s.units, [&](int64_t row, int64_t from, int64_t to) {
        const int64_t state = row * s.units + from, at = t * row_size + state, factor = shape.constant ? from : at;
        if (!runs(s, row, t)) {
          fill_part<kParts>(db, at, to - from);
          if (!shape.constant) fill_part<kParts>(da, at, to - from);
          return;
        }
        const bool is_first = previous < 0 || previous >= s.frames || !runs(s, row, previous);
        const float* const* before = is_first ? h0 : h;
        const int64_t before_at = is_first ? state : previous * row_size + state;
        by_vectors(to - from, [&](int64_t u, auto whole, int n) {
          constexpr bool kWhole = decltype(whole)::value;
          if (ahead) prefetch_numbers<kParts>(dh, at + u + ahead);
          if (ahead) prefetch_numbers<kParts>(h, at + u + 2 * ahead);
          if (ahead && !shape.constant) prefetch_numbers<kParts>(a, at + u + ahead);
          auto g = load_numbers<kParts, kWhole>(dh, at + u, n);
          const auto carried = load_numbers<kParts, kWhole>(dh0, state + u, n);
          for (int p = 0; p < kParts; ++p) g.part[p] += carried.part[p];
          const auto h_before = load_numbers<kParts, kWhole>(before, before_at + u, n);
          put_numbers<kParts, kWhole, kStream>(db, at + u, g, n);
          if (shape.constant) {
            const auto sum = load_numbers<kParts, kWhole>(da, state + u, n);
            store_numbers<kParts, kWhole>(da, state + u, multiply_add<true>(h_before, g, sum), n);
          } else {
            put_numbers<kParts, kWhole, kStream>(da, at + u, multiply_add<true>(h_before, g, Numbers<kParts>{}), n);
          }
          const auto factors = load_numbers<kParts, kWhole>(a, factor + u, n);
          store_numbers<kParts, kWhole>(dh0, state + u, multiply_add<true>(factors, g, Numbers<kParts>{}), n);
        });
      });
    }
    if (kStream) stream_end();
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

void rtf_scan_forward_f32(const RtfScanShape* shape, const float* const* a, const float* const* b,
                          const float* const* h0, float* const* h, float* const* h_last, const RtfThreads* threads) {
  const auto run = [&](auto parts) {
    constexpr int kParts = decltype(parts)::value;
    const bool past_caches = rtf::streams<kParts>(*shape, {h});
    (past_caches ? rtf::forward<kParts, true> : rtf::forward<kParts, false>)(*shape, a, b, h0, h, h_last, *threads);
  };
  if (shape->parts == 1)
    run(std::integral_constant<int, 1>());
  else
    run(std::integral_constant<int, 2>());
}

void rtf_scan_backward_f32(const RtfScanShape* shape, const float* const* a, const float* const* h0,
                           const float* const* h, const float* const* dh, const float* const* dh_last, float* const* da,
                           float* const* db, float* const* dh0, const RtfThreads* threads) {
  const auto run = [&](auto parts) {
    constexpr int kParts = decltype(parts)::value;
    const bool past_caches = rtf::streams<kParts>(*shape, {da, db});
    (past_caches ? rtf::backward<kParts, true> : rtf::backward<kParts, false>)(*shape, a, h0, h, dh, dh_last, da, db,
                                                                               dh0, *threads);
  };
  if (shape->parts == 1)
    run(std::integral_constant<int, 1>());
  else
    run(std::integral_constant<int, 2>());
}
}
