// Which chunks contain a frame.
#pragma once

#include "../common/both.h"
#include "chunk.h"

namespace rtf {

struct ChunkRange {
  int64_t first, end;
  RTF_BOTH float factor(int mean) const { return mean && end > first ? 1.0f / static_cast<float>(end - first) : 1.0f; }
};

RTF_BOTH inline ChunkRange chunks_with(const RtfChunks& shape, int64_t t) {
  const int64_t before = t - shape.size + 1;  // the smallest first frame
  const int64_t first = before > 0 ? (before + shape.step - 1) / shape.step : 0, end = t / shape.step + 1;
  return {first, end < shape.count ? end : shape.count};
}

}  // namespace rtf
