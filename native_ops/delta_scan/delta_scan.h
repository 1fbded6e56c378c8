// The delta rule over a ragged batch: matrix-valued linear recurrences that also replace what a key reads. Float32,
// row-major, independent of TensorFlow.
//
//   u[t] = S[t-1]^T a[t];   S[t] = diag(exp(g[t])) S[t-1] + b[t] u[t]^T + k[t] v[t]^T;   o[t] = S[t]^T q[t]
//
// in each head of each sequence; with reverse t+1 takes the place of t-1.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"
#include "../common/sequences.h"

extern "C" {

typedef struct RtfDeltaScanShape {
  RtfSequences sequences;  // units: the number of heads, H
  int64_t keys;            // K: rows of S
  int64_t values;          // V: columns of S
  int64_t decays;          // D: K, or 1 for one decay for all rows
} RtfDeltaScanShape;

// Inputs: q, k, a, b [T, B, H, K], v [T, B, H, V], g [T, B, H, D] (at most 0), the first state [B, H, K, V].
typedef struct RtfDeltaScanInputs {
  const float *q, *k, *v, *a, *b, *g, *first;
} RtfDeltaScanInputs;

typedef struct RtfDeltaScanGradients {
  float *q, *k, *v, *a, *b, *g, *first;
} RtfDeltaScanGradients;

// Forward pass: o and u [T, B, H, V], 0 after the end of a sequence, and the last state [B, H, K, V].
void rtf_delta_scan_forward_f32(const RtfDeltaScanShape* shape, const RtfDeltaScanInputs* inputs, float* o, float* u,
                                float* last, const RtfThreads* threads);

// Gradients for all inputs from those of o (d_o) and of the last state. Of the states only the last one is needed.
void rtf_delta_scan_backward_f32(const RtfDeltaScanShape* shape, const RtfDeltaScanInputs* inputs, const float* u,
                                 const float* last, const float* d_o, const float* d_last,
                                 const RtfDeltaScanGradients* gradients, const RtfThreads* threads);

// The same on a GPU: arrays and lengths in its memory; stream is a cudaStream_t. At most 512 keys and values. Returns
// null, or the text of an error. The backward pass needs scratch memory of as many floats.
int64_t rtf_delta_scan_cuda_scratch_size(const RtfDeltaScanShape* shape);
const char* rtf_delta_scan_forward_cuda_f32(const RtfDeltaScanShape* shape, const RtfDeltaScanInputs* inputs, float* o,
                                            float* u, float* last, void* stream);
const char* rtf_delta_scan_backward_cuda_f32(const RtfDeltaScanShape* shape, const RtfDeltaScanInputs* inputs,
                                             const float* u, const float* last, const float* d_o, const float* d_last,
                                             const RtfDeltaScanGradients* gradients, float* scratch, void* stream);
}
