// sLSTM over ragged batches: the plain C interface of the kernels, independent of TensorFlow.
//
//   i, f, z, o = split(z_t + h_{t-1} R);  k = log sigmoid(f) + m_{t-1}, or k = f + m_{t-1};  m_t = max(k, i)
//   c_t = exp(k - m_t) c_{t-1} + exp(i - m_t) tanh(z);  n_t = exp(k - m_t) n_{t-1} + exp(i - m_t)
//   h_t = sigmoid(o) c_t / n_t
//
// Beck et al. 2024, arXiv 2405.04517. One head per call. All arrays are dense and row-major, T frames x B sequences x H
// units. Frames after the end of a sequence are written as 0.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"
#include "../common/sequences.h"

extern "C" {

typedef RtfSequences RtfSLstmShape;

// The four parts of a state, or of its gradient: c, n, m, h.
typedef struct RtfSLstmState {
  float *c, *n, *m, *h;
} RtfSLstmState;

typedef struct RtfSLstmConstState {
  const float *c, *n, *m, *h;
} RtfSLstmConstState;

// Whether the passes can round the factors of products with r to bfloat16, half to even: with AVX512-BF16.
int rtf_slstm_rounds(void);

// Floats of scratch memory that either pass needs. rounded: as for the passes.
int64_t rtf_slstm_scratch_size(const RtfSLstmShape* shape, int rounded);

// The passes: with rounded != 0, products with r have rounded factors, and sums in float.

// z [T, B, 4H] (may alias gates), r [H, 4H], initial state [B, H] each
//   -> states [T, B, H] each, gates before their activations [T, B, 4H], last state [B, H] each.
// exp_forget != 0: the forget gate is an exponential function.
void rtf_slstm_forward_f32(const RtfSLstmShape* shape, int rounded, int exp_forget, const float* z, const float* r,
                           const RtfSLstmConstState* initial, const RtfSLstmState* states, float* gates,
                           const RtfSLstmState* last, float* scratch, const RtfThreads* threads);

// states (h is not read), gates: as written by forward; dh [T, B, H], dlast [B, H] each: gradients of its results
//   -> dz [T, B, 4H] (may alias gates), dinitial [B, H] each.
// The gradient of r is a product of h (shifted by one frame) and dz over all frames, left to the caller's GEMM.
void rtf_slstm_backward_f32(const RtfSLstmShape* shape, int rounded, int exp_forget, const float* r,
                            const RtfSLstmConstState* initial, const RtfSLstmConstState* states, const float* gates,
                            const float* dh, const RtfSLstmConstState* dlast, float* dz, const RtfSLstmState* dinitial,
                            float* scratch, const RtfThreads* threads);
}
