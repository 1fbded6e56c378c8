// The sLSTM on the GPU: the plain C interface, independent of CUDA's and TensorFlow's headers. Formulas and arrays:
// slstm.h.
//
// All arrays are in GPU memory, the structs of their addresses in that of the host; `lengths` is in host memory and not
// accessed after a function returns. numbers: RTF_FLOAT or RTF_FLOAT_TF32. `stream` is a cudaStream_t of the current
// device; the functions only enqueue work. They return null, or the text of an error.
#pragma once

#include "../common/cuda/recurrence.h"
#include "slstm.h"

extern "C" {

// Bytes of workspace, a multiple of 256, that a pass needs on the current device.
const char* rtf_slstm_cuda_workspace(const RtfSLstmShape* shape, RtfNumbers numbers, int backward, int64_t* bytes);

const char* rtf_slstm_forward_cuda(const RtfSLstmShape* shape, RtfNumbers numbers, int exp_forget, const float* z,
                                   const float* r, const RtfSLstmConstState* initial, const RtfSLstmState* states,
                                   float* gates, const RtfSLstmState* last, void* workspace, void* stream);

const char* rtf_slstm_backward_cuda(const RtfSLstmShape* shape, RtfNumbers numbers, int exp_forget, const float* r,
                                    const RtfSLstmConstState* initial, const RtfSLstmConstState* states,
                                    const float* gates, const float* dh, const RtfSLstmConstState* dlast, float* dz,
                                    const RtfSLstmState* dinitial, void* workspace, void* stream);
}
