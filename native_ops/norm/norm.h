// Layer normalisation over the last axis, forward and backward. Float32, row-major, independent of TensorFlow.
//
//   y[r, u] = (x[r, u] - mean[r]) * factor[r] * scale[u] + bias[u]    factor = 1 / sqrt(variance + epsilon)
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

typedef struct RtfNorm {
  int64_t rows, width;
  float epsilon;
} RtfNorm;

// mean and factor, both [rows], are for the gradient. scale and bias, both [width], may be null. y may be x.
void rtf_norm_f32(const RtfNorm* shape, const float* x, const float* scale, const float* bias, float* y, float* mean,
                  float* factor, const RtfThreads* threads);

// The number of floats of scratch for the sums over rows.
int64_t rtf_norm_scratch_size(const RtfNorm* shape);

// dx [rows, width]; dscale and dbias, both [width]. scale may be null. dx may be dy.
void rtf_norm_grad_f32(const RtfNorm* shape, const float* dy, const float* x, const float* scale, const float* mean,
                       const float* factor, float* dx, float* dscale, float* dbias, float* scratch,
                       const RtfThreads* threads);

// The same on a GPU: arrays in its memory, stream is a cudaStream_t. Returns null, or the text of an error.
const char* rtf_norm_cuda_f32(const RtfNorm* shape, const float* x, const float* scale, const float* bias, float* y,
                              float* mean, float* factor, void* stream);
int64_t rtf_norm_cuda_scratch_size(const RtfNorm* shape);
const char* rtf_norm_grad_cuda_f32(const RtfNorm* shape, const float* dy, const float* x, const float* scale,
                                   const float* mean, const float* factor, float* dx, float* dscale, float* dbias,
                                   float* scratch, void* stream);
}
