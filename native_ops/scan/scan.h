// Diagonal linear recurrences over a ragged batch. Float32, row-major, independent of TensorFlow.
//
//   h[t] = a[t] * h[t-1] + b[t]    elementwise; with reverse h[t+1] takes the place of h[t-1]
//
// A complex array is two arrays, of its real and of its imaginary parts; parts says which. Entry 1 of the arrays of
// pointers below is only read with parts == 2.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"
#include "../common/sequences.h"

extern "C" {

typedef struct RtfScanShape {
  RtfSequences sequences;
  int parts;     // 1: real, 2: complex
  int constant;  // a is [H], the same in all frames and sequences; else [T, B, H]
} RtfScanShape;

// Forward pass: h [T, B, H], 0 after the end of a sequence, and the last state h_last [B, H] from b [T, B, H] and
// h0 [B, H].
void rtf_scan_forward_f32(const RtfScanShape* shape, const float* const* a, const float* const* b,
                          const float* const* h0, float* const* h, float* const* h_last, const RtfThreads* threads);

// Gradients for a, b and h0 from those of h (dh) and h_last; those of complex numbers are d/dre + i d/dim. With
// constant factors da is [B, H]: the sum over the frames of each sequence.
void rtf_scan_backward_f32(const RtfScanShape* shape, const float* const* a, const float* const* h0,
                           const float* const* h, const float* const* dh, const float* const* dh_last, float* const* da,
                           float* const* db, float* const* dh0, const RtfThreads* threads);

// The same on a GPU: arrays and lengths in its memory, the arrays of pointers in that of the host; stream is a
// cudaStream_t. Returns null, or the text of an error.
const char* rtf_scan_forward_cuda_f32(const RtfScanShape* shape, const float* const* a, const float* const* b,
                                      const float* const* h0, float* const* h, float* const* h_last, void* stream);
const char* rtf_scan_backward_cuda_f32(const RtfScanShape* shape, const float* const* a, const float* const* h0,
                                       const float* const* h, const float* const* dh, const float* const* dh_last,
                                       float* const* da, float* const* db, float* const* dh0, void* stream);
}
