// The integers that a kernel needs from the host, sent to the GPU by one copy; and parts of a workspace.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "../common/cuda/device.h"

namespace rtf {

// Deals out a workspace, piece by piece. Without memory it only counts the bytes.
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

// Collects arrays of 32-bit integers in memory of its own, which stays until the stream has read it: so the caller's arrays may go
// when a call returns. Whether the driver reads pageable memory before cudaMemcpyAsync returns depends on the machine.
class Staging {
 public:
  explicit Staging(int32_t* device) : device_(device) {}

  // Where the array will be on the GPU.
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

  // Once, after all arrays were added.
  cudaError_t send(cudaStream_t stream) {
    if (values_->empty()) return cudaSuccess;
    const size_t bytes = values_->size() * sizeof(int32_t);
    const cudaError_t error = cudaMemcpyAsync(device_, values_->data(), bytes, cudaMemcpyHostToDevice, stream);
    if (error != cudaSuccess) return error;
    // If this fails, the stream has: then they are never freed, as nobody knows when that would be safe.
    return cudaLaunchHostFunc(
        stream, [](void* values) { delete static_cast<Values*>(values); }, values_.release());
  }

 private:
  using Values = std::vector<int32_t>;

  int32_t* device_;
  std::unique_ptr<Values> values_ = std::make_unique<Values>();
};

// Runs steps until one fails; gives the text of its error, or null.
template <typename... Steps>
const char* first_error(const Steps&... steps) {
  cudaError_t error = cudaSuccess;
  ((error = error == cudaSuccess ? steps() : error), ...);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// Threads of a block for so many states: one for each, as far as there are so many.
inline int threads_for(int64_t states) {
  const int64_t warps = (states + kWarp - 1) / kWarp;
  return static_cast<int>(warps < 1 ? 1 : warps > 32 ? 32 : warps) * kWarp;
}

// The least number of blocks that are enough for n, if each does `each`.
inline unsigned blocks_for(int64_t n, int64_t each) { return static_cast<unsigned>((n + each - 1) / each); }

}  // namespace rtf
