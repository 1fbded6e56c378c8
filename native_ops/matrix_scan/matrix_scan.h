// Matrix-valued linear recurrences over a ragged batch: decaying sums of outer products. Float32, row-major,
// independent of TensorFlow.
//
//   S[t] = diag(exp(g[t])) S[t-1] + k[t] v[t]^T;   o[t] = S[t]^T q[t], or with exclusive S[t-1]^T q[t]
//
// in each head of each sequence; with reverse t+1 takes the place of t-1.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"
#include "../common/sequences.h"

extern "C" {

typedef struct RtfMatrixScanShape {
  RtfSequences sequences;  // units: the number of heads, H
  int64_t keys;            // K: rows of S
  int64_t values;          // V: columns of S
  int64_t decays;          // D: K, or 1 for one decay for all rows
  int exclusive;
} RtfMatrixScanShape;

// Forward pass: o [T, B, H, V], 0 after the end of a sequence, and the last state [B, H, K, V] from q and k
// [T, B, H, K], v [T, B, H, V], g [T, B, H, D] (at most 0) and the first state [B, H, K, V].
void rtf_matrix_scan_forward_f32(const RtfMatrixScanShape* shape, const float* q, const float* k, const float* v,
                                 const float* g, const float* first, float* o, float* last, const RtfThreads* threads);

// Gradients for all inputs from those of o (d_o) and of the last state. It needs no states of the forward pass but the
// last one.
void rtf_matrix_scan_backward_f32(const RtfMatrixScanShape* shape, const float* q, const float* k, const float* v,
                                  const float* g, const float* first, const float* last, const float* d_o,
                                  const float* d_last, float* d_q, float* d_k, float* d_v, float* d_g, float* d_first,
                                  const RtfThreads* threads);

// The same on a GPU: arrays and lengths in its memory; stream is a cudaStream_t. At most 512 keys and values. Returns
// null, or the text of an error.
const char* rtf_matrix_scan_forward_cuda_f32(const RtfMatrixScanShape* shape, const float* q, const float* k,
                                             const float* v, const float* g, const float* first, float* o, float* last,
                                             void* stream);
const char* rtf_matrix_scan_backward_cuda_f32(const RtfMatrixScanShape* shape, const float* q, const float* k,
                                              const float* v, const float* g, const float* first, const float* last,
                                              const float* d_o, const float* d_last, float* d_q, float* d_k, float* d_v,
                                              float* d_g, float* d_first, void* stream);
}
