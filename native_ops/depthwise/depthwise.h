// Depthwise convolution along time: each channel has a filter of its own. Float32, row-major, independent of
// TensorFlow.
//
//   y[n, t, c] = bias[c] + sum over k of w[k, c] * x[n, t + k * dilation - left, c]    x is 0 outside of its frames
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

typedef struct RtfDepthwise {
  int64_t batch, frames, out_frames, channels;
  int64_t taps, dilation, left;  // of the filter; left: zeros in front of the first frame
} RtfDepthwise;

// The number of floats of scratch for at most this many threads, and of those for the sums of the gradient.
int64_t rtf_depthwise_scratch_size(const RtfDepthwise* shape, int n_threads);
int64_t rtf_depthwise_sums_size(const RtfDepthwise* shape);

// x [batch, frames, channels], w [taps, channels], y [batch, out_frames, channels]. bias [channels] may be null.
void rtf_depthwise_f32(const RtfDepthwise* shape, const float* x, const float* w, const float* bias, float* y,
                       float* scratch, const RtfThreads* threads);

// dx as x, dw as w, dbias [channels]. The arrays may not overlap.
void rtf_depthwise_grad_f32(const RtfDepthwise* shape, const float* dy, const float* x, const float* w, float* dx,
                            float* dw, float* dbias, float* sums, float* scratch, const RtfThreads* threads);

// The same on a GPU: arrays in its memory, stream is a cudaStream_t. Returns null, or the text of an error.
const char* rtf_depthwise_cuda_f32(const RtfDepthwise* shape, const float* x, const float* w, const float* bias,
                                   float* y, void* stream);
int64_t rtf_depthwise_cuda_scratch_size(const RtfDepthwise* shape);
const char* rtf_depthwise_grad_cuda_f32(const RtfDepthwise* shape, const float* dy, const float* x, const float* w,
                                        float* dx, float* dw, float* dbias, float* scratch, void* stream);
}
