// The dialect of CUDA in which all kernels of this folder are written. nvcc compiles it for the GPU; an ordinary compiler
// with -DRTF_CUDA_EMULATION=1 makes each CUDA thread a fiber on the CPU, so that tests need no GPU (tests/native/cuda).
//
// Rules: kernels are launched by launch() and launch_cooperative() only; shared memory is the one pool that dynamic_shared()
// returns; loops that wait for another block call spin_pause().
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

// A load that sees what any block wrote before its store_release of the value.
__device__ __forceinline__ unsigned load_acquire(const unsigned* address) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_release(unsigned* address, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Adds to a counter, for load_acquire: who sees the sum also sees what this block wrote before it, all of its threads if they
// had a __syncthreads in between. Returns the value before. Cheaper than __threadfence and atomicAdd, as it need not wait until
// all blocks agree on an order of all writes. ("membar.gl" is what __threadfence becomes.)
__device__ __forceinline__ unsigned add_release(unsigned* counter, unsigned amount) {
  unsigned before;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(amount) : "memory");
  return before;
}

namespace detail {

// Lets a kernel have as much shared memory as a block can have, not only what this launch needs: the limit belongs to the kernel,
// and another thread may be between here and its launch of the same kernel with more.
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

// Blocks of this kernel that one multiprocessor takes at once.
template <class... P>
cudaError_t blocks_per_multiprocessor(int* blocks, void (*kernel)(P...), int threads, size_t shared_bytes) {
  const cudaError_t error = detail::prepare(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared_bytes);
}

#endif

// kernel<<<grid, block, shared_bytes, stream>>>(args...). A grid or block of 0 is an error, as everywhere in CUDA.
template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, A&&... args) {
  return detail::launch_any(kernel, grid, block, shared_bytes, stream, false, static_cast<A&&>(args)...);
}

// The same, with all blocks on the GPU at the same time, or an error if they do not fit.
template <class... P, class... A>
cudaError_t launch_cooperative(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                               A&&... args) {
  return detail::launch_any(kernel, grid, block, shared_bytes, stream, true, static_cast<A&&>(args)...);
}

// What a plan for a launch depends on.
struct DeviceFacts {
  int multiprocessors;
  int shared_per_block;           // bytes, the most that a launch can ask for
  int shared_per_multiprocessor;  // bytes
  int l2_bytes;
  int major, minor;  // compute capability
};

// The facts of the current device.
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

// Whether a counter that only grows has come to a number. Both may have passed 2^32, as where blocks meet often enough.
__device__ __forceinline__ bool has_reached(unsigned counter, unsigned number) {
  return static_cast<int>(counter - number) >= 0;
}

}  // namespace rtf
