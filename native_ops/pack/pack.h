// The frames of a padded batch without those after the end of their sequence, and back. Float32, row-major, independent
// of TensorFlow.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

// A batch [batch, frames, width]; sequence b has min(max(lengths[b], 0), frames) frames.
typedef struct RtfPadded {
  int64_t batch, frames, width;
  const int32_t* lengths;
} RtfPadded;

// The number of frames of all sequences, without padding.
int64_t rtf_valid_frames(const RtfPadded* shape);

// packed [valid frames, width]: the frames of one sequence after those of the other.
void rtf_pack_f32(const RtfPadded* shape, const float* padded, float* packed, const RtfThreads* threads);

// padded [batch, frames, width], 0 after the end of each sequence.
void rtf_unpack_f32(const RtfPadded* shape, const float* packed, float* padded, const RtfThreads* threads);

// rows [valid frames]: the number of each packed frame among those of the batch, b * frames + t.
void rtf_packed_rows(const RtfPadded* shape, int64_t* rows);
}
