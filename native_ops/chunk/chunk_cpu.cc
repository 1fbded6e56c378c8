#include <algorithm>

#include "../common/ragged.h"
#include "chunk_range.h"

extern "C" {

void rtf_chunk_f32(const RtfChunks* shape, const float* x, float* chunks, const RtfThreads* threads) {
  const RtfChunks s = *shape;
  rtf::run_ranges(*threads, s.size * s.batch * s.count, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / s.count % s.batch, t = row % s.count * s.step + row / s.count / s.batch;
      float* to = chunks + row * s.width;
      if (t >= s.frames) {
        std::fill(to, to + s.width, 0.0f);
        continue;
      }
      const float* from = x + (t * s.batch + b) * s.width;
      const float factor = rtf::chunks_with(s, t).factor(s.mean);
      for (int64_t k = 0; k < s.width; ++k) to[k] = factor * from[k];
    }
  });
}

void rtf_unchunk_f32(const RtfChunks* shape, const float* chunks, float* x, const RtfThreads* threads) {
  const RtfChunks s = *shape;
  rtf::run_ranges(*threads, s.frames * s.batch, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t t = row / s.batch, b = row % s.batch;
      const rtf::ChunkRange range = rtf::chunks_with(s, t);
      const float factor = range.factor(s.mean);
      float* to = x + row * s.width;
      if (range.first >= range.end) std::fill(to, to + s.width, 0.0f);
      for (int64_t c = range.first; c < range.end; ++c) {
        const float* from = chunks + ((t - c * s.step) * s.batch * s.count + b * s.count + c) * s.width;
        if (c == range.first)
          for (int64_t k = 0; k < s.width; ++k) to[k] = factor * from[k];
        else
          for (int64_t k = 0; k < s.width; ++k) to[k] += factor * from[k];
      }
    }
  });
}
}
