// The LSTM on the GPU: the plain C interface, independent of CUDA's and TensorFlow's headers. Formulas and arrays:
// lstm.h.
//
// All arrays are in GPU memory and have the same number format; sums, and the state c between steps, are float.
// `lengths` is in host memory and not accessed after a function returns. `stream` is a cudaStream_t of the current
// device; the functions only enqueue work. They return null, or the text of an error.
#pragma once

#include <stdint.h>

#include "../common/cuda/recurrence.h"
#include "../common/sequences.h"

extern "C" {

// Bytes of workspace, a multiple of 256, that a pass needs on the current device.
const char* rtf_lstm_cuda_workspace(const RtfSequences* shape, RtfNumbers numbers, int backward, int64_t* bytes);

// z [T, B, 4H] (may alias gates), r [H, 4H], c0, h0 [B, H]
//   -> h, c [T, B, H], activated gates [T, B, 4H], c_last, h_last [B, H]
const char* rtf_lstm_forward_cuda(const RtfSequences* shape, RtfNumbers numbers, const void* z, const void* r,
                                  const void* c0, const void* h0, void* h, void* c, void* gates, void* c_last,
                                  void* h_last, void* workspace, void* stream);

// gates, c: as written by forward; dh [T, B, H], dc_last, dh_last [B, H]
//   -> dz [T, B, 4H] (may alias gates), dc0, dh0 [B, H]
const char* rtf_lstm_backward_cuda(const RtfSequences* shape, RtfNumbers numbers, const void* r, const void* c0,
                                   const void* c, const void* gates, const void* dh, const void* dc_last,
                                   const void* dh_last, void* dz, void* dc0, void* dh0, void* workspace, void* stream);
}
