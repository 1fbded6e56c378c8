// LSTM over ragged batches: the plain C interface of the kernels, independent of TensorFlow.
//
//   j, i, f, o = split(z_t + h_{t-1} R);  c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(j);  h_t = sigmoid(o) tanh(c_t)
//
// Hochreiter & Schmidhuber 1997 with the forget gate of Gers et al. 2000. All arrays are dense and row-major, T frames
// x B sequences x H units, gates in the order j, i, f, o. Frames after the end of a sequence are written as 0.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"
#include "../common/sequences.h"

extern "C" {

typedef RtfSequences RtfLstmShape;

// Whether the passes can round the factors of products with r to bfloat16, half to even: with AVX512-BF16.
int rtf_lstm_rounds(void);

// Floats of scratch memory that either pass needs. rounded: as for the passes.
int64_t rtf_lstm_scratch_size(const RtfLstmShape* shape, int rounded);

// The passes: with rounded != 0, products with r have rounded factors, and sums in float.

// z [T, B, 4H] (may alias gates), r [H, 4H], c0, h0 [B, H]
//   -> h, c [T, B, H], activated gates [T, B, 4H], c_last, h_last [B, H]: the state after a sequence's last frame
void rtf_lstm_forward_f32(const RtfLstmShape* shape, int rounded, const float* z, const float* r, const float* c0,
                          const float* h0, float* h, float* c, float* gates, float* c_last, float* h_last,
                          float* scratch, const RtfThreads* threads);

// gates, c: as written by forward; dh [T, B, H], dc_last, dh_last [B, H]: gradients of its results
//   -> dz [T, B, 4H] (may alias gates), dc0, dh0 [B, H].
// The gradient of r is a product of h (shifted by one frame) and dz over all frames, left to the caller's GEMM.
void rtf_lstm_backward_f32(const RtfLstmShape* shape, int rounded, const float* r, const float* c0, const float* c,
                           const float* gates, const float* dh, const float* dc_last, const float* dh_last, float* dz,
                           float* dc0, float* dh0, float* scratch, const RtfThreads* threads);
}
