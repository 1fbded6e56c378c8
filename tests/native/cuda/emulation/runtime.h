// The CUDA runtime as far as native ops use it, and launches.
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "machine.h"

using cudaStream_t = struct RtfEmulatedStream*;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
  cudaErrorCooperativeLaunchTooLarge = 720,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
  cudaDevAttrL2CacheSize,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
};

namespace rtf {
namespace emulation {

inline long setting(const char* name, long standard) {
  const char* value = getenv(name);
  return value != nullptr && *value != 0 ? atol(value) : standard;
}

// The stream of an op, in place of TensorFlow's. Work on the default one, which is null, would not wait for what the op
// before has begun, so it is refused.
inline cudaStream_t stream() { return reinterpret_cast<cudaStream_t>(0x100); }
inline cudaError_t check_stream(cudaStream_t given) {
  return given == stream() ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

// A Hopper GPU with fewer multiprocessors.
inline int attribute(cudaDeviceAttr which) {
  switch (which) {
    case cudaDevAttrMultiProcessorCount: return static_cast<int>(setting("RTF_EMULATION_SMS", 4));
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return static_cast<int>(setting("RTF_EMULATION_SHARED", 227 * 1024));
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 228 * 1024;
    case cudaDevAttrL2CacheSize: return 50 * 1024 * 1024;
    case cudaDevAttrComputeCapabilityMajor: return 9;
    case cudaDevAttrComputeCapabilityMinor: return 0;
  }
  return 0;
}

// Each block costs 1 KiB more than it asks for.
inline int resident_blocks(int threads, size_t shared_bytes) {
  const long by_memory =
      attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / static_cast<long>(shared_bytes + 1024);
  return static_cast<int>(std::min({by_memory, 2048L / ((threads + 31) / 32 * 32), 32L}));
}

// What a stream may do after the call that asked for it, until the host waits or copies again: host functions, and
// reading the memory of the host that a copy is from. That is there a second time here: it still has to be what it was.
class Late {
 public:
  static Late& get() {
    static Late late;
    return late;
  }

  void copy(const void* from, size_t bytes) {
    const auto* start = static_cast<const unsigned char*>(from);
    const std::vector<unsigned char> before(start, start + bytes);
    todo_.push_back([=] { return memcmp(before.data(), start, before.size()) == 0; });
  }

  void call(void (*function)(void*), void* argument) {
    todo_.push_back([=] { return function(argument), true; });
  }

  cudaError_t finish() {
    bool good = true;
    for (const auto& one : todo_) good = one() && good;
    todo_.clear();
    return good ? cudaSuccess : cudaErrorIllegalAddress;
  }

 private:
  std::vector<std::function<bool()>> todo_;
};

}  // namespace emulation

namespace detail {

template <class... P, class... A>
cudaError_t launch_any(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                       bool cooperative, A&&... args) {
  using namespace emulation;
  const cudaError_t wrong = check_stream(stream);
  if (wrong != cudaSuccess) return wrong;
  const size_t threads = size_t(block.x) * block.y * block.z, blocks = size_t(grid.x) * grid.y * grid.z;
  if (blocks == 0 || threads == 0 || threads > 1024 || block.z > 64) return cudaErrorInvalidConfiguration;
  if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return cudaErrorInvalidConfiguration;
  if (shared_bytes > static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)))
    return cudaErrorInvalidValue;
  const int room = resident_blocks(static_cast<int>(threads), shared_bytes) * attribute(cudaDevAttrMultiProcessorCount);
  if (cooperative && blocks > static_cast<size_t>(room)) return cudaErrorCooperativeLaunchTooLarge;
  const std::tuple<P...> values(static_cast<P>(args)...);
  const std::function<void()> body = [&] { std::apply(kernel, values); };
  Machine& machine = Machine::get();
  machine.seed(static_cast<unsigned>(setting("RTF_EMULATION_SEED", 1)));
  std::vector<uint3> order;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) order.push_back({x, y, z});
  std::shuffle(order.begin(), order.end(), machine.random());
  gridDim = grid;
  blockDim = block;
  bool good = true;
  if (cooperative) {
    good = machine.run(order, block, shared_bytes, true, body);
  } else {
    for (size_t i = 0; i < order.size() && good; ++i) good = machine.run({order[i]}, block, shared_bytes, false, body);
  }
  if (!good) fprintf(stderr, "CUDA emulation: %s\n", machine.failure().c_str());
  return good ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // namespace detail

template <class... P>
cudaError_t blocks_per_multiprocessor(int* blocks, void (*)(P...), int threads, size_t shared_bytes) {
  const bool fits = shared_bytes <= static_cast<size_t>(emulation::attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  *blocks = fits ? emulation::resident_blocks(threads, shared_bytes) : 0;
  return fits ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace rtf

inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorIllegalAddress: return "memory of the host was changed or freed before a copy had read it";
    case cudaErrorInvalidResourceHandle: return "work on another stream than that of the op";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorCooperativeLaunchTooLarge: return "too many blocks in cooperative launch";
    case cudaErrorLaunchFailure: return rtf::emulation::Machine::get().failure().c_str();
  }
  return "unknown error";
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }  // launch() has returned it
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return rtf::emulation::attribute(cudaDevAttrMultiProcessorCount) > 0 ? cudaSuccess : cudaErrorNoDevice;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  return *value = rtf::emulation::attribute(which), cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const cudaError_t error = rtf::emulation::check_stream(stream);
  return error == cudaSuccess ? rtf::emulation::Late::get().finish() : error;
}
inline cudaError_t cudaDeviceSynchronize() { return rtf::emulation::Late::get().finish(); }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) memmove(to, from, bytes);
  return rtf::emulation::Late::get().finish();
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream = nullptr) {
  cudaError_t error = rtf::emulation::check_stream(stream);
  if (error == cudaSuccess) error = cudaMemcpy(to, from, bytes, kind);
  if (error != cudaSuccess) return error;
  if (kind == cudaMemcpyHostToDevice) rtf::emulation::Late::get().copy(from, bytes);
  return error;
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  const cudaError_t error = rtf::emulation::check_stream(stream);
  if (error == cudaSuccess) rtf::emulation::Late::get().call(function, argument);
  return error;
}
inline cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (bytes > 0) memset(to, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream = nullptr) {
  const cudaError_t error = rtf::emulation::check_stream(stream);
  return error == cudaSuccess ? cudaMemset(to, value, bytes) : error;
}
template <class T>
cudaError_t cudaMalloc(T** memory, size_t bytes) {
  void* got = nullptr;
  if (posix_memalign(&got, 256, bytes > 0 ? bytes : 1) != 0) return cudaErrorMemoryAllocation;
  memset(got, 0xff, bytes);
  *memory = static_cast<T*>(got);
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) { return free(memory), cudaSuccess; }
