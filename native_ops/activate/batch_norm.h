// Batch normalisation over the rows of a matrix and an activation. Float32, row-major, independent of TensorFlow.
//
//   y[r, u] = f((x[r, u] - mean[u]) * factor[u] * scale[u] + shift[u])    factor = 1 / sqrt(variance + epsilon)
//
// Mean and variance are those of the rows whose mask is not 0; without such rows they are 0.
#pragma once

#include "activate.h"

extern "C" {

typedef struct RtfBatchNorm {
  int64_t rows, width;
  float epsilon;
  int function;         // one of RtfFunction
  const uint8_t* mask;  // [rows]; null: all rows
} RtfBatchNorm;

// The number of floats of scratch for the sums over rows, of the moments and of the gradient.
int64_t rtf_batch_norm_scratch_size(const RtfBatchNorm* shape);

// mean and variance, both [width].
void rtf_batch_moments_f32(const RtfBatchNorm* shape, const float* x, float* mean, float* variance, float* scratch,
                           const RtfThreads* threads);

// scale and shift, both [width], may be null. y may be x.
void rtf_batch_norm_f32(const RtfBatchNorm* shape, const float* x, const float* mean, const float* variance,
                        const float* scale, const float* shift, float* y, const RtfThreads* threads);

// dx [rows, width], with mean and variance as functions of x; dscale and dshift, both [width]. dx may be dy.
void rtf_batch_norm_grad_f32(const RtfBatchNorm* shape, const float* dy, const float* x, const float* mean,
                             const float* variance, const float* scale, const float* shift, float* dx, float* dscale,
                             float* dshift, float* scratch, const RtfThreads* threads);

// The same on a GPU: arrays, also the mask, in its memory, stream is a cudaStream_t. Return null, or the text of an
// error.
int64_t rtf_batch_norm_cuda_scratch_size(const RtfBatchNorm* shape);
const char* rtf_batch_moments_cuda_f32(const RtfBatchNorm* shape, const float* x, float* mean, float* variance,
                                       float* scratch, void* stream);
const char* rtf_batch_norm_cuda_f32(const RtfBatchNorm* shape, const float* x, const float* mean, const float* variance,
                                    const float* scale, const float* shift, float* y, void* stream);
const char* rtf_batch_norm_grad_cuda_f32(const RtfBatchNorm* shape, const float* dy, const float* x, const float* mean,
                                         const float* variance, const float* scale, const float* shift, float* dx,
                                         float* dscale, float* dshift, float* scratch, void* stream);
}
