// best_labels.h on the GPU, independent of CUDA's and TensorFlow's headers. All arrays are in GPU memory; stream is a
// cudaStream_t. Equal input gives equal bits. The function returns null, or the text of an error.
#pragma once

#include "best_labels.h"

extern "C" {

// How many labels there may be in `count`.
enum { RTF_MOST_BEST_LABELS = 2048 };

// See rtf_best_labels_f32. NaN counts as higher than all numbers.
const char* rtf_best_labels_cuda_f32(int64_t rows, int64_t labels, int64_t count, const float* x, float* values,
                                     int32_t* indices, float* log_sums, void* stream);
}
