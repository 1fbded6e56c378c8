// attention.h and once.h on the GPU, independent of CUDA's and TensorFlow's headers. All arrays are in GPU memory;
// stream is a cudaStream_t. Equal input gives equal bits, whatever other hypotheses there are. The functions return
// null, or the text of an error.
#pragma once

#include "attention.h"
#include "once.h"

extern "C" {

// See rtf_beam_attention_f32. The frames of the steps before are first copied from keys_before and values_before,
// unless that is the same memory. next_rows [entries, steps + 1]: rows with the frame of this step. With a row that is
// not in 0 ... entries - 1 the result of the entry is NaN.
const char* rtf_beam_attention_cuda_f32(const RtfBeamAttention* shape, const float* qkv, const int32_t* rows,
                                        const float* shift, const float* keys_before, const float* values_before,
                                        float* keys, float* values, float* y, int32_t* next_rows, void* stream);

// See rtf_once_attention_f32.
const char* rtf_once_attention_cuda_f32(const RtfOnce* shape, int64_t value_size, float scale, const float* queries,
                                        const float* keys, const float* values, const int32_t* lengths, float* y,
                                        void* stream);
}
