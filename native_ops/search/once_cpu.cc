#include "../common/ragged.h"
#include "once.h"
#include "rows.h"

namespace rtf {
namespace {

// function(sequence, head) on the lent threads.
template <typename Function>
void for_heads(const RtfOnce& s, const RtfThreads& threads, const Function& function) {
  run_ranges(threads, s.batch * s.heads, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) function(at / s.heads, at % s.heads);
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

void rtf_once_energies_f32(const RtfOnce* shape, const float* queries, const float* keys, float* y,
                           const RtfThreads* threads) {
  const RtfOnce s = *shape;
  rtf::for_heads(s, *threads, [&](int64_t b, int64_t head) {
    for (int64_t frame = 0; frame < s.frames; ++frame) {
      const float* key = keys + ((b * s.frames + frame) * s.heads + head) * s.size;
      for (int64_t entry = b * s.beam; entry < (b + 1) * s.beam; ++entry) {
        const int64_t at = entry * s.heads + head;
        y[at * s.frames + frame] = rtf::dot(queries + at * s.size, key, s.size);
      }
    }
  });
}

void rtf_once_sums_f32(const RtfOnce* shape, const float* weights, const float* values, float* y,
                       const RtfThreads* threads) {
  const RtfOnce s = *shape;
  rtf::for_heads(s, *threads, [&](int64_t b, int64_t head) {
    for (int64_t entry = b * s.beam; entry < (b + 1) * s.beam; ++entry) {
      float* to = y + (entry * s.heads + head) * s.size;
      std::fill(to, to + s.size, 0.0f);
    }
    for (int64_t frame = 0; frame < s.frames; ++frame) {
      const float* value = values + ((b * s.frames + frame) * s.heads + head) * s.size;
      for (int64_t entry = b * s.beam; entry < (b + 1) * s.beam; ++entry) {
        const int64_t at = entry * s.heads + head;
        rtf::add_scaled(weights[at * s.frames + frame], value, y + at * s.size, s.size);
      }
    }
  });
}
}
