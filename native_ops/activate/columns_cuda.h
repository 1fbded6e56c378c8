// Kernels over rows whose columns have numbers of their own: a block has some columns of some rows, and a warp goes
// through rows, with four columns of each for a lane, whose numbers stay in registers.
#pragma once

#include "../common/cuda/sums.h"

namespace rtf {

constexpr int kWarps = 8;  // of a block, with a row each
constexpr int kEach = 4;   // columns of a lane
constexpr int kColumns = kEach * kWarp;
constexpr int kLeastRows = 2 * kWarps;  // of a block

// The columns of this thread: first() + k * kWarp for k < kEach, as far as there are any.
struct Columns {
  int64_t width;

  __device__ __forceinline__ int64_t of_block() const { return blockIdx.x * static_cast<int64_t>(kColumns); }

  // Calls function(column, k).
  template <typename Function>
  __device__ __forceinline__ void each(const Function& function) const {
    const int64_t first = of_block() + threadIdx.x % kWarp;
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (first + k * kWarp < width) function(first + k * kWarp, k);
  }
};

// Calls function(row) for the rows of this warp.
template <typename Function>
__device__ __forceinline__ void each_row(int64_t rows, const Function& function) {
  const int64_t first = blockIdx.y * rows / gridDim.y, last = (blockIdx.y + 1) * rows / gridDim.y;
  for (int64_t row = first + threadIdx.x / kWarp; row < last; row += kWarps) function(row);
}

// Launches a kernel for all rows and columns.
template <typename Kernel, typename... Arguments>
cudaError_t run(Kernel kernel, int64_t rows, int64_t width, size_t shared_bytes, void* stream,
                const Arguments&... arguments) {
  if (rows == 0 || width == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((width + kColumns - 1) / kColumns),
                  static_cast<unsigned>(blocks_of_rows(rows, kLeastRows)));
  return launch(kernel, grid, kWarps * kWarp, shared_bytes, static_cast<cudaStream_t>(stream), arguments...);
}

inline const char* text_of(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

}  // namespace rtf
