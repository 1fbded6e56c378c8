// Attention of all hypotheses of a sequence to frames that are stored once per sequence. Float32, row-major,
// independent of TensorFlow.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

// beam: hypotheses per sequence, neighbours in [batch * beam, ...]
typedef struct RtfOnce {
  int64_t batch, beam, frames, heads, size;
} RtfOnce;

// y [batch * beam, heads, value_size] = sum over the frames of weights times values [batch, frames, heads, value_size],
// with weights = softmax over the frames of scale times queries [batch * beam, heads, size] times
// keys [batch, frames, heads, size]. Frames from lengths[row] on have no weight; lengths [batch * beam] may be null.
// Where no frame is left, y is 0.
void rtf_once_attention_f32(const RtfOnce* shape, int64_t value_size, float scale, const float* queries,
                            const float* keys, const float* values, const int32_t* lengths, float* y,
                            const RtfThreads* threads);
}
