// MDLSTM over a batch of images of different sizes: the plain C interface of the kernels, independent of TensorFlow.
//
//   z[i, j] + h[i - 1, j] R_up + h[i, j - 1] R_left = i, f, l, o, a
//   c[i, j] = kept + sigmoid(i) tanh(a);  h[i, j] = sigmoid(o) tanh(c[i, j])
//   stable:     kept = sigmoid(f) (sigmoid(l) c[i, j - 1] + (1 - sigmoid(l)) c[i - 1, j])  (Leifert et al. 2016)
//   not stable: kept = sigmoid(f) c[i, j - 1] + sigmoid(l) c[i - 1, j]                     (Graves & Schmidhuber 2009)
//
// All arrays are dense and row-major, B images x Y rows x X columns x H units. Image b is in the first heights[b] rows
// and widths[b] columns; the rest is padding, which is not read and is written as 0. A direction starts in the upper
// left corner of each image; with flip_rows it runs from the last row upwards, with flip_columns from the last column
// to the left.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

typedef struct RtfMdLstmShape {
  int64_t batch, rows, columns;  // B, Y, X >= 0
  int64_t units;                 // H >= 1
  const int32_t* heights;        // [B], each in 0 .. Y
  const int32_t* widths;         // [B], each in 0 .. X
  int stable;
} RtfMdLstmShape;

typedef struct RtfMdLstmForward {
  int flip_rows, flip_columns;
  const float* z;  // [B, Y, X, 5H], may alias gates
  const float* r;  // [2H, 5H]: R_up above R_left
  float *h, *c;    // [B, Y, X, H]
  float* gates;    // [B, Y, X, 5H]: after activation
} RtfMdLstmForward;

typedef struct RtfMdLstmBackward {
  int flip_rows, flip_columns;
  const float* r;              // as before
  const float *h, *c, *gates;  // as written by forward
  const float* dh;             // [B, Y, X, H]: gradient of h
  float* dz;                   // [B, Y, X, 5H]: may alias gates
  // [B, Y, X, 2H]: h of the pixel above and of the one to the left. The gradient of r is the product of its transpose
  // and dz over all pixels, left to the caller's GEMM.
  float* before;
} RtfMdLstmBackward;

// Whether the passes can round the factors of products with r to bfloat16, half to even: with AVX512-BF16.
int rtf_mdlstm_rounds(void);

// Floats of scratch memory that either pass needs. rounded: as for the passes.
int64_t rtf_mdlstm_scratch_size(int64_t units, int rounded, int64_t n_directions);

// The passes: all directions in one call, as threads share directions and images. With rounded != 0, products with r
// have rounded factors, and sums in float.
void rtf_mdlstm_forward_f32(const RtfMdLstmShape* shape, int rounded, int64_t n_directions,
                            const RtfMdLstmForward* directions, float* scratch, const RtfThreads* threads);

void rtf_mdlstm_backward_f32(const RtfMdLstmShape* shape, int rounded, int64_t n_directions,
                             const RtfMdLstmBackward* directions, float* scratch, const RtfThreads* threads);
}
