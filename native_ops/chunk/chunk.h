// Sequences as batches of overlapping chunks, and back. Float32, row-major, independent of TensorFlow.
//
// Chunk c of sequence b has the frames c * step ... c * step + size - 1 and is at index b * count + c in the batch of
// chunks.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

// With mean != 0 each frame is divided by the number of chunks that contain it: then unchunk averages where chunks
// overlap, and chunk is its gradient; else chunk copies, and unchunk, which adds up, is its gradient.
typedef struct RtfChunks {
  int64_t frames, batch, width;
  int64_t size, step, count;  // count: chunks per sequence
  int mean;
} RtfChunks;

// chunks [size, batch * count, width] from x [frames, batch, width]; 0 after the last frame.
void rtf_chunk_f32(const RtfChunks* shape, const float* x, float* chunks, const RtfThreads* threads);

// x [frames, batch, width] from chunks [size, batch * count, width]; 0 in frames that no chunk contains.
void rtf_unchunk_f32(const RtfChunks* shape, const float* chunks, float* x, const RtfThreads* threads);

// The same on a GPU: arrays in its memory, stream is a cudaStream_t. Returns null, or the text of an error.
const char* rtf_chunk_cuda_f32(const RtfChunks* shape, const float* x, float* chunks, void* stream);
const char* rtf_unchunk_cuda_f32(const RtfChunks* shape, const float* chunks, float* x, void* stream);
}
