// Products of values of all hypotheses of a sequence with frames that are stored once per sequence: attention whose
// energies or weights are used elsewhere. Float32, row-major, independent of TensorFlow.
#pragma once

#include "once.h"

extern "C" {

// y [batch * beam, heads, frames] = sum over the size of queries [batch * beam, heads, size] times
// keys [batch, frames, heads, size]
void rtf_once_energies_f32(const RtfOnce* shape, const float* queries, const float* keys, float* y,
                           const RtfThreads* threads);

// y [batch * beam, heads, size] = sum over the frames of weights [batch * beam, heads, frames] times
// values [batch, frames, heads, size]
void rtf_once_sums_f32(const RtfOnce* shape, const float* weights, const float* values, float* y,
                       const RtfThreads* threads);
}
