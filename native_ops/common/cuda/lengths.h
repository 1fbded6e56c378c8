// The lengths of a ragged batch in the memory of the GPU.
#pragma once

#include "../sequences.h"
#include "device.h"

namespace rtf {

// The length of a sequence, limited to the array, since the host can't check it.
__device__ __forceinline__ int64_t length_of(const RtfSequences& s, int64_t b) {
  const int64_t length = s.lengths ? s.lengths[b] : s.frames;
  return length < 0 ? 0 : length < s.frames ? length : s.frames;
}

}  // namespace rtf
