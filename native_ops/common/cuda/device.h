// The dialect of CUDA in which all kernels of this folder are written. nvcc compiles it for the GPU; an ordinary
// compiler with -DRTF_CUDA_EMULATION=1 turns each CUDA thread into a fiber on the CPU, so that tests need no GPU
// (tests/native/cuda).
//
// Rules: kernels are launched by launch() and launch_cooperative() only; shared memory is the one pool that
// dynamic_shared() returns; loops that wait for another block call spin_pause().
#pragma once

#include <stddef.h>
#include <stdint.h>

#if RTF_CUDA_EMULATION
#include "cuda_emulation.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

namespace rtf {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

#if !RTF_CUDA_EMULATION

template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char rtf_shared_pool[];
  return reinterpret_cast<T*>(rtf_shared_pool);
}

__device__ __forceinline__ void spin_pause() {}

// Acquire load: sees everything that any block wrote before its store_release of the value.
__device__ __forceinline__ unsigned load_acquire(const unsigned* address) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_release(unsigned* address, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Release addition to a counter, for load_acquire: whoever sees the sum also sees what this block wrote before it, by
// all of its threads if there was a __syncthreads in between. Returns the previous value. Cheaper than __threadfence
// and atomicAdd, because it need not wait until all blocks agree on an order of all writes. ("membar.gl" is what
// __threadfence compiles to.)
__device__ __forceinline__ unsigned add_release(unsigned* counter, unsigned amount) {
  unsigned before;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(amount) : "memory");
  return before;
}

namespace detail {

// Lets a kernel use as much shared memory as a block can have, not only what this launch needs: the limit belongs to
// the kernel, and another thread may be between this call and its own launch of the same kernel with more.
template <class... P>
cudaError_t prepare(void (*kernel)(P...), size_t shared_bytes) {
  if (shared_bytes <= 48 * 1024) return cudaSuccess;
  int device = 0, most = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

template <class... P, class... A>
cudaError_t launch_any(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                       bool cooperative, A&&... args) {
  const cudaError_t error = prepare(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = cooperative ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}

}  // namespace detail

// Blocks of this kernel that one multiprocessor runs at a time.
template <class... P>
cudaError_t blocks_per_multiprocessor(int* blocks, void (*kernel)(P...), int threads, size_t shared_bytes) {
  const cudaError_t error = detail::prepare(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared_bytes);
}

#endif

// kernel<<<grid, block, shared_bytes, stream>>>(args...). An empty grid or block is an error, as usual in CUDA.
template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, A&&... args) {
  return detail::launch_any(kernel, grid, block, shared_bytes, stream, false, static_cast<A&&>(args)...);
}

// The same with all blocks resident on the GPU at the same time; an error if they do not fit.
template <class... P, class... A>
cudaError_t launch_cooperative(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                               A&&... args) {
  return detail::launch_any(kernel, grid, block, shared_bytes, stream, true, static_cast<A&&>(args)...);
}

// Device properties that a launch plan depends on.
struct DeviceFacts {
  int multiprocessors;
  int shared_per_block;           // bytes, the maximum for a launch
  int shared_per_multiprocessor;  // bytes
  int l2_bytes;
  int major, minor;  // compute capability
};

// The properties of the current device.
inline cudaError_t device_facts(DeviceFacts* facts) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  const struct {
    int* value;
    cudaDeviceAttr attribute;
  } wanted[] = {
      {&facts->multiprocessors, cudaDevAttrMultiProcessorCount},
      {&facts->shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin},
      {&facts->shared_per_multiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor},
      {&facts->l2_bytes, cudaDevAttrL2CacheSize},
      {&facts->major, cudaDevAttrComputeCapabilityMajor},
      {&facts->minor, cudaDevAttrComputeCapabilityMinor},
  };
  for (const auto& one : wanted)
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(one.value, one.attribute, device);
  return error;
}

// Whether a counter that only grows has reached a number. Both may have wrapped around 2^32.
__device__ __forceinline__ bool has_reached(unsigned counter, unsigned number) {
  return static_cast<int>(counter - number) >= 0;
}

}  // namespace rtf
