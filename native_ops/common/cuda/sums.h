// Sums whose order depends on sizes alone, not on the GPU or on which block is first: over the lanes of a warp, over a
// row by the threads that share it, and over rows.
#pragma once

#include "device.h"

namespace rtf {

// The sum over all lanes of a warp, in each of them.
__device__ __forceinline__ float warp_sum(float x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// The sum over the kTeam threads that share a row, in each of them: a warp, or all threads of a block. These need
// kTeam / kWarp floats of shared memory.
template <int kTeam>
__device__ __forceinline__ float team_sum(float x, float* shared) {
  x = warp_sum(x);
  if (kTeam == kWarp) return x;
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = 0.0f;
  for (int warp = 0; warp < kTeam / kWarp; ++warp) x += shared[warp];
  __syncthreads();  // before the next sum
  return x;
}

// Blocks of rows with a partial sum of their own, for add_parts: enough for any GPU, and at least some rows in each.
inline int64_t blocks_of_rows(int64_t rows, int64_t least) {
  const int64_t blocks = (rows + least - 1) / least;
  return blocks < 1 ? 1 : blocks < 256 ? blocks : 256;
}

constexpr int kAddingWarps = 8;

// to[u] = the sum of from[part, u] over the parts. The second row of blocks adds the arrays that follow to `second`.
static __global__ void add_parts(int64_t parts, int64_t width, const float* from, float* to, float* second) {
  if (blockIdx.y > 0) from += parts * width, to = second;
  float* shared = dynamic_shared<float>();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t u = blockIdx.x * static_cast<int64_t>(kWarp) + lane;
  float sum = 0.0f;
  if (u < width)
    for (int64_t part = warp; part < parts; part += kAddingWarps) sum += from[part * width + u];
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (warp > 0 || u >= width) return;
  for (int other = 1; other < kAddingWarps; ++other) sum += shared[other * kWarp + lane];
  to[u] = sum;
}

// Launches it for one array [parts, width], or for two of them, one behind the other, if `second` is not null.
inline cudaError_t launch_add_parts(int64_t parts, int64_t width, const float* from, float* to, float* second,
                                    cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((width + kWarp - 1) / kWarp), second ? 2 : 1);
  const int threads = kAddingWarps * kWarp;
  return launch(add_parts, grid, threads, threads * sizeof(float), stream, parts, width, from, to, second);
}

}  // namespace rtf
