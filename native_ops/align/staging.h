// Staging: the integers that a kernel needs from the host, sent to the GPU by one copy. Also the layout of a workspace.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "../common/cuda/device.h"

namespace rtf {

// Carves a workspace into pieces. Without memory it only counts the bytes.
class Workspace {
 public:
  explicit Workspace(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <typename T>
  T* take(int64_t count) {
    char* piece = memory_ ? memory_ + size_ : nullptr;
    size_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<T*>(piece);
  }

  int64_t size() const { return size_; }

 private:
  static constexpr int64_t kAlignment = 256;
  char* memory_;
  int64_t size_ = 0;
};

// Collects arrays of 32-bit integers in its own memory, which lives until the stream has read it, so that the caller
// may free its arrays on return. Whether the driver reads pageable memory before cudaMemcpyAsync returns depends on the
// machine.
class Staging {
 public:
  explicit Staging(int32_t* device) : device_(device) {}

  // The address of the array on the GPU.
  const int32_t* add(const int32_t* from, int64_t count) {
    const int64_t at = static_cast<int64_t>(values_->size());
    values_->insert(values_->end(), from, from + count);
    return device_ + at;
  }

  const uint8_t* add_bytes(const uint8_t* from, int64_t count) {
    const int64_t at = static_cast<int64_t>(values_->size());
    values_->resize(at + (count + 3) / 4);
    if (count) std::memcpy(values_->data() + at, from, count);
    return reinterpret_cast<const uint8_t*>(device_ + at);
  }

  // Call once, after all arrays have been added.
  cudaError_t send(cudaStream_t stream) {
    if (values_->empty()) return cudaSuccess;
    const size_t bytes = values_->size() * sizeof(int32_t);
    const cudaError_t error = cudaMemcpyAsync(device_, values_->data(), bytes, cudaMemcpyHostToDevice, stream);
    if (error != cudaSuccess) return error;
    // This fails only if the stream has failed. The arrays are then leaked, since no point is known at which freeing is
    // safe.
    return cudaLaunchHostFunc(
        stream, [](void* values) { delete static_cast<Values*>(values); }, values_.release());
  }

 private:
  using Values = std::vector<int32_t>;

  int32_t* device_;
  std::unique_ptr<Values> values_ = std::make_unique<Values>();
};

// Runs steps until one fails; returns the text of its error, or null.
template <typename... Steps>
const char* first_error(const Steps&... steps) {
  cudaError_t error = cudaSuccess;
  ((error = error == cudaSuccess ? steps() : error), ...);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// Threads per block for this many states: one per state, up to a maximum.
inline int threads_for(int64_t states) {
  const int64_t warps = (states + kWarp - 1) / kWarp;
  return static_cast<int>(warps < 1 ? 1 : warps > 32 ? 32 : warps) * kWarp;
}

// The smallest number of blocks for n items, with `each` items per block.
inline unsigned blocks_for(int64_t n, int64_t each) { return static_cast<unsigned>((n + each - 1) / each); }

}  // namespace rtf
