// Chunks on the GPU: one thread per number of the result, adjacent threads at adjacent addresses.
#include "../common/cuda/device.h"
#include "chunk_range.h"

namespace rtf {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ int64_t thread_number() { return blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x; }

__global__ void chunk(RtfChunks s, const float* x, float* chunks) {
  const int64_t i = thread_number(), row = i / s.width;
  if (row >= s.size * s.batch * s.count) return;
  const int64_t b = row / s.count % s.batch, t = row % s.count * s.step + row / s.count / s.batch;
  chunks[i] = t < s.frames ? chunks_with(s, t).factor(s.mean) * x[(t * s.batch + b) * s.width + i % s.width] : 0.0f;
}

__global__ void unchunk(RtfChunks s, const float* chunks, float* x) {
  const int64_t i = thread_number(), row = i / s.width, t = row / s.batch, b = row % s.batch;
  if (t >= s.frames) return;
  const ChunkRange range = chunks_with(s, t);
  float sum = 0.0f;
  for (int64_t c = range.first; c < range.end; ++c)
    sum += chunks[((t - c * s.step) * s.batch * s.count + b * s.count + c) * s.width + i % s.width];
  x[i] = range.factor(s.mean) * sum;
}

template <typename Kernel>
const char* run(Kernel kernel, const RtfChunks& shape, int64_t results, const float* from, float* to, void* stream) {
  if (results == 0) return nullptr;
  const unsigned blocks = static_cast<unsigned>((results + kThreads - 1) / kThreads);
  const cudaError_t error = launch(kernel, blocks, kThreads, 0, static_cast<cudaStream_t>(stream), shape, from, to);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace
}  // namespace rtf

extern "C" {

const char* rtf_chunk_cuda_f32(const RtfChunks* shape, const float* x, float* chunks, void* stream) {
  return rtf::run(rtf::chunk, *shape, shape->size * shape->batch * shape->count * shape->width, x, chunks, stream);
}

const char* rtf_unchunk_cuda_f32(const RtfChunks* shape, const float* chunks, float* x, void* stream) {
  return rtf::run(rtf::unchunk, *shape, shape->frames * shape->batch * shape->width, chunks, x, stream);
}
}
