// The GRU on the GPU: the plain C interface, without any header of CUDA or TensorFlow. Formulas and arrays: gru.h.
//
// As lstm_cuda.h has it: arrays, numbers, lengths, workspace, stream and errors.
#pragma once

#include <stdint.h>

#include "../common/cuda/recurrence.h"
#include "../common/sequences.h"

extern "C" {

// Bytes of workspace, a multiple of 256, that a pass needs on the current device.
const char* rtf_gru_cuda_workspace(const RtfSequences* shape, RtfNumbers numbers, int backward, int64_t* bytes);

// z [T, B, 3H] (may be the same memory as gates), r_gates [H, 2H], r_candidate [H, H], h0 [B, H]
//   -> h [T, B, H], gates [T, B, 3H]: r, u, c after their activation, h_last [B, H]
const char* rtf_gru_forward_cuda(const RtfSequences* shape, RtfNumbers numbers, const void* z, const void* r_gates,
                                 const void* r_candidate, const void* h0, void* h, void* gates, void* h_last,
                                 void* workspace, void* stream);

// h, gates: as forward left them; dh [T, B, H], dh_last [B, H]
//   -> dz [T, B, 3H] (may be the same memory as gates), reset_h [T, B, H]: r h_{t-1}, dh0 [B, H]
const char* rtf_gru_backward_cuda(const RtfSequences* shape, RtfNumbers numbers, const void* r_gates,
                                  const void* r_candidate, const void* h0, const void* h, const void* gates,
                                  const void* dh, const void* dh_last, void* dz, void* reset_h, void* dh0,
                                  void* workspace, void* stream);
}
