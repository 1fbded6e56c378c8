// Attention on a GPU: the same as attention.h, with pointers to its memory. Lengths beyond the keys count as all keys,
// since the host can't look at them.
#pragma once

#include "../common/cuda/recurrence.h"
#include "attention.h"

extern "C" {

// Floats of scratch memory.
int64_t rtf_attention_forward_cuda_scratch(const RtfAttention* shape);
int64_t rtf_attention_grad_cuda_scratch(const RtfAttention* shape);

// numbers: RTF_FLOAT or RTF_FLOAT_TF32, for products of factors that are not `rounded`. Both return null, or the text
// of an error.
const char* rtf_attention_cuda_f32(const RtfAttention* shape, const RtfVectors* q, const RtfVectors* k,
                                   const RtfVectors* v, const RtfVectors* y, float* log_sums, float* scratch,
                                   int numbers, void* stream);
const char* rtf_attention_grad_cuda_f32(const RtfAttention* shape, const RtfVectors* q, const RtfVectors* k,
                                        const RtfVectors* v, const RtfVectors* y, const float* log_sums,
                                        const RtfVectors* dy, const RtfVectors* dq, const RtfVectors* dk,
                                        const RtfVectors* dv, float* d_tables, float* scratch, int numbers,
                                        void* stream);
}
