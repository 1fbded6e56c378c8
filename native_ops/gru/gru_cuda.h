// The GRU on the GPU: the plain C interface, independent of CUDA's and TensorFlow's headers. Formulas and arrays:
// gru.h.
//
// Memory, number formats, lengths, workspace, stream and errors: as in lstm_cuda.h.
#pragma once

#include <stdint.h>

#include "../common/cuda/recurrence.h"
#include "../common/sequences.h"

extern "C" {

// Bytes of workspace, a multiple of 256, that a pass needs on the current device.
const char* rtf_gru_cuda_workspace(const RtfSequences* shape, RtfNumbers numbers, int backward, int64_t* bytes);

// z [T, B, 3H] (may alias gates), r_gates [H, 2H], r_candidate [H, H], h0 [B, H]
//   -> h [T, B, H], gates [T, B, 3H]: activated r, u, c, h_last [B, H]
const char* rtf_gru_forward_cuda(const RtfSequences* shape, RtfNumbers numbers, const void* z, const void* r_gates,
                                 const void* r_candidate, const void* h0, void* h, void* gates, void* h_last,
                                 void* workspace, void* stream);

// h, gates: as written by forward; dh [T, B, H], dh_last [B, H]
//   -> dz [T, B, 3H] (may alias gates), reset_h [T, B, H]: r h_{t-1}, dh0 [B, H]
const char* rtf_gru_backward_cuda(const RtfSequences* shape, RtfNumbers numbers, const void* r_gates,
                                  const void* r_candidate, const void* h0, const void* h, const void* gates,
                                  const void* dh, const void* dh_last, void* dz, void* reset_h, void* dh0,
                                  void* workspace, void* stream);
}
