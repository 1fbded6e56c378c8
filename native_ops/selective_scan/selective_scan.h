// Selective state spaces (Mamba, arXiv 2312.00752) over a ragged batch. Float32, row-major, independent of TensorFlow.
//
//   h[t] = exp(delta[t] a) h[t-1] + delta[t] x[t] b[t];   y[t] = sum over the states of c[t] h[t], plus d x[t]
//
// H channels (x, delta, y, d), N states for each (b, c); a and h have one number for each state and channel, [N, H].
// The factors exp(delta a) and the states of all frames are never in memory at once.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"
#include "../common/sequences.h"

extern "C" {

typedef struct RtfSelectiveShape {
  RtfSequences sequences;  // units: H
  int64_t states;          // N >= 1
} RtfSelectiveShape;

// Inputs of both passes: x, delta [T, B, H]; a [N, H]; b, c [T, B, N]; d [H]; h0 [B, N, H].
typedef struct RtfSelectiveInputs {
  const float *x, *delta, *a, *b, *c, *d, *h0;
} RtfSelectiveInputs;

// Gradients, with the shapes of what they belong to, but da [B, N, H] and dd [B, H]: a sum for each sequence.
typedef struct RtfSelectiveGradients {
  float *x, *delta, *a, *b, *c, *d, *h0;
} RtfSelectiveGradients;

// The forward pass keeps the state before every so many steps for the backward pass: [count, B, N, H].
enum { RTF_SELECTIVE_CHUNK = 32 };
int64_t rtf_selective_checkpoints(int64_t frames);

// Floats of scratch memory of the backward pass.
int64_t rtf_selective_scratch_size(const RtfSelectiveShape* shape);

// y [T, B, H], 0 after the end of a sequence; h_last [B, N, H]; checkpoints as above.
void rtf_selective_forward_f32(const RtfSelectiveShape* shape, const RtfSelectiveInputs* inputs, float* y,
                               float* h_last, float* checkpoints, const RtfThreads* threads);

void rtf_selective_backward_f32(const RtfSelectiveShape* shape, const RtfSelectiveInputs* inputs,
                                const float* checkpoints, const float* dy, const float* dh_last,
                                const RtfSelectiveGradients* gradients, float* scratch, const RtfThreads* threads);

// The same on a GPU: arrays and lengths in its memory; stream is a cudaStream_t. Returns null, or the text of an error.
int64_t rtf_selective_cuda_scratch_size(const RtfSelectiveShape* shape);
const char* rtf_selective_forward_cuda_f32(const RtfSelectiveShape* shape, const RtfSelectiveInputs* inputs, float* y,
                                           float* h_last, float* checkpoints, void* stream);
const char* rtf_selective_backward_cuda_f32(const RtfSelectiveShape* shape, const RtfSelectiveInputs* inputs,
                                            const float* checkpoints, const float* dy, const float* dh_last,
                                            const RtfSelectiveGradients* gradients, float* scratch, void* stream);
}
