// GRU over ragged batches: the plain C interface of the kernels, independent of TensorFlow.
//
//   r, u = sigmoid(split(z_ru + h_{t-1} R_gates));  c = tanh(z_c + (r h_{t-1}) R_candidate)
//   h_t = u h_{t-1} + (1 - u) c
//
// Cho et al. 2014, arXiv 1406.1078, version 1: the reset gate is applied before the product. All arrays are dense and
// row-major, T frames x B sequences x H units; z = (z_ru, z_c) has the order r, u, c. Frames after the end of a
// sequence are written as 0.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"
#include "../common/sequences.h"

extern "C" {

typedef RtfSequences RtfGruShape;

// Whether the passes can round the factors of products with weights to bfloat16, half to even: with AVX512-BF16.
int rtf_gru_rounds(void);

// Floats of scratch memory that either pass needs. rounded: as for the passes.
int64_t rtf_gru_scratch_size(const RtfGruShape* shape, int rounded);

// The passes: with rounded != 0, products with weights have rounded factors, and sums in float.

// z [T, B, 3H] (may alias gates), r_gates [H, 2H], r_candidate [H, H], h0 [B, H]
//   -> h [T, B, H], gates [T, B, 3H]: activated r, u, c, h_last [B, H]: the state after a sequence's last frame
void rtf_gru_forward_f32(const RtfGruShape* shape, int rounded, const float* z, const float* r_gates,
                         const float* r_candidate, const float* h0, float* h, float* gates, float* h_last,
                         float* scratch, const RtfThreads* threads);

// h, gates: as written by forward; dh [T, B, H], dh_last [B, H]: gradients of its results
//   -> dz [T, B, 3H] (may alias gates), reset_h [T, B, H]: r h_{t-1}, dh0 [B, H].
// The gradients of the weights are products over all frames, left to the caller's GEMM: h (shifted by one frame) and
// the first 2H columns of dz for r_gates, reset_h and the last H columns of dz for r_candidate.
void rtf_gru_backward_f32(const RtfGruShape* shape, int rounded, const float* r_gates, const float* r_candidate,
                          const float* h0, const float* h, const float* gates, const float* dh, const float* dh_last,
                          float* dz, float* reset_h, float* dh0, float* scratch, const RtfThreads* threads);
}
