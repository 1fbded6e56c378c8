// One step of self-attention in a beam search. Float32, row-major, independent of TensorFlow.
//
// Keys and values of all steps stay where they were written: [capacity, entries, heads * size], the frame of step s at
// index s. When the search reorders its hypotheses, only the indices of their frames move: rows[e, s] is the entry that
// wrote, in step s, the frame of the hypothesis that is entry e now.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

// entries: hypotheses of all sequences; steps: those before this one; key, value: sizes for each head
typedef struct RtfBeamAttention {
  int64_t entries, steps, heads, key, value;
} RtfBeamAttention;

// y [entries, heads * value]: y[e, h] = sum over s <= steps of softmax over s(q[e, h] (k[s, h] + shift[s]) / sqrt(key))
// v[s, h]
//
// qkv [entries, heads * (2 * key + value)]: for each head q, k and v of this step. k and v are written to the frame
// `steps` of keys and values first. rows [entries, steps], entries 0 ... entries - 1. shift [steps + 1, key] may be
// null.
void rtf_beam_attention_f32(const RtfBeamAttention* shape, const float* qkv, const int32_t* rows, const float* shift,
                            float* keys, float* values, float* y, const RtfThreads* threads);
}
