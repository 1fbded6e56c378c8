// What follows a product, in one pass over memory: bias, activation, dropout, residual connection. Float32, row-major,
// independent of TensorFlow.
//
//   y[r, u] = residual[r, u] + keep[n[r] * width + u] * factors[u] * f(x[r, u] + bias[u])
//
// keep is 0 with the probability `rate`, else `scale`. It is drawn again for the gradient instead of being stored. n[r]
// is r, unless the rows are some of a larger matrix.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

enum RtfFunction { RTF_IDENTITY, RTF_RELU, RTF_GELU, RTF_SWISH, RTF_TANH, RTF_SIGMOID };

typedef struct RtfActivate {
  int64_t rows, width;
  int function;       // one of RtfFunction
  float rate, scale;  // rate 0: no dropout
  uint64_t key;       // of TensorFlow's generator Philox
  uint64_t counter[2];
  const int64_t* numbers;  // of the rows, for keep, [rows]; null: 0 .. rows - 1
} RtfActivate;

// bias, factors and residual may be null; factors are not negative. y may be x or residual.
void rtf_activate_f32(const RtfActivate* shape, const float* x, const float* bias, const float* factors,
                      const float* residual, float* y, const RtfThreads* threads);

// The number of floats of scratch that the gradient of the bias needs.
int64_t rtf_activate_scratch_size(const RtfActivate* shape);

// dx [rows, width], and dbias [width] unless it is null. dx may be dy or kept.
//
// kept is x; or, if of_output != 0, y without a residual: for RTF_RELU, and for RTF_TANH and RTF_SIGMOID without
// dropout and factors. It is not read for RTF_IDENTITY.
void rtf_activate_grad_f32(const RtfActivate* shape, const float* dy, const float* kept, int of_output,
                           const float* bias, const float* factors, float* dx, float* dbias, float* scratch,
                           const RtfThreads* threads);

// y [rows, width] = f(a) * g(b) of x [rows, 2 * width], in which each row is that of a and then that of b.
void rtf_gate_f32(int64_t rows, int64_t width, int f, int g, const float* x, float* y, const RtfThreads* threads);

// dx [rows, 2 * width]. dx may not be x.
void rtf_gate_grad_f32(int64_t rows, int64_t width, int f, int g, const float* x, const float* dy, float* dx,
                       const RtfThreads* threads);

// The same on a GPU: arrays in its memory, numbers of the shape too; stream is a cudaStream_t. key [1] and counter [2]
// in its memory take the place of those of the shape; null without dropout. Returns null, or the text of an error.
const char* rtf_activate_cuda_f32(const RtfActivate* shape, const uint64_t* key, const uint64_t* counter,
                                  const float* x, const float* bias, const float* factors, const float* residual,
                                  float* y, void* stream);
int64_t rtf_activate_cuda_scratch_size(const RtfActivate* shape);
const char* rtf_activate_grad_cuda_f32(const RtfActivate* shape, const uint64_t* key, const uint64_t* counter,
                                       const float* dy, const float* kept, int of_output, const float* bias,
                                       const float* factors, float* dx, float* dbias, float* scratch, void* stream);
const char* rtf_gate_cuda_f32(int64_t rows, int64_t width, int f, int g, const float* x, float* y, void* stream);
const char* rtf_gate_grad_cuda_f32(int64_t rows, int64_t width, int f, int g, const float* x, const float* dy,
                                   float* dx, void* stream);
}
