#include <algorithm>
#include <vector>

#include "../common/rows.h"
#include "pack.h"

namespace rtf {
namespace {

int64_t length_of(const RtfPadded& s, int64_t b) { return std::min<int64_t>(std::max(s.lengths[b], 0), s.frames); }

// The first packed frame of each sequence, and the end of the last one.
std::vector<int64_t> starts_of(const RtfPadded& s) {
  std::vector<int64_t> starts(s.batch + 1, 0);
  for (int64_t b = 0; b < s.batch; ++b) starts[b + 1] = starts[b] + length_of(s, b);
  return starts;
}

// Calls function(sequence, first frame, last frame) for parts of sequences.
template <typename Function>
void by_sequences(const RtfPadded& s, const RtfThreads& threads, const Function& function) {
  run_rows(threads, s.batch * s.frames, s.width, [&](int64_t first, int64_t last) {
    while (first < last) {
      const int64_t b = first / s.frames, begin = first % s.frames, end = std::min(s.frames, begin + last - first);
      function(b, begin, end);
      first += end - begin;
    }
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_valid_frames(const RtfPadded* shape) { return rtf::starts_of(*shape).back(); }

void rtf_pack_f32(const RtfPadded* shape, const float* padded, float* packed, const RtfThreads* threads) {
  const RtfPadded& s = *shape;
  const std::vector<int64_t> starts = rtf::starts_of(s);
  rtf::by_sequences(s, *threads, [&](int64_t b, int64_t begin, int64_t end) {
    end = std::min(end, starts[b + 1] - starts[b]);
    if (begin >= end) return;
    const float* from = padded + (b * s.frames + begin) * s.width;
    std::copy(from, from + (end - begin) * s.width, packed + (starts[b] + begin) * s.width);
  });
}

void rtf_unpack_f32(const RtfPadded* shape, const float* packed, float* padded, const RtfThreads* threads) {
  const RtfPadded& s = *shape;
  const std::vector<int64_t> starts = rtf::starts_of(s);
  rtf::by_sequences(s, *threads, [&](int64_t b, int64_t begin, int64_t end) {
    float* to = padded + (b * s.frames + begin) * s.width;
    const int64_t valid = std::max<int64_t>(0, std::min(end, starts[b + 1] - starts[b]) - begin);
    const float* from = packed + (starts[b] + begin) * s.width;
    if (valid > 0) std::copy(from, from + valid * s.width, to);
    std::fill(to + valid * s.width, to + (end - begin) * s.width, 0.0f);
  });
}

void rtf_packed_rows(const RtfPadded* shape, int64_t* rows) {
  for (int64_t b = 0; b < shape->batch; ++b) {
    const int64_t length = rtf::length_of(*shape, b);
    for (int64_t t = 0; t < length; ++t) *rows++ = b * shape->frames + t;
  }
}
}
