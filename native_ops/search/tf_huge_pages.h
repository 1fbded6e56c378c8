// Tensors in large pages.
#pragma once

#include <string>

#include "../common/tf_op.h"
#include "huge_pages.h"
#include "tensorflow/core/framework/allocator.h"

namespace rtf {

class HugePageAllocator : public tensorflow::Allocator {
 public:
  // The one of this library. It is never destroyed: a tensor may live longer than anything else.
  static HugePageAllocator* get() {
    static auto* const allocator = new HugePageAllocator;
    return allocator;
  }

  std::string Name() override { return "rtf_huge_pages"; }
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    return alignment <= HugePages::kLine ? pages_.take(bytes) : nullptr;
  }
  void DeallocateRaw(void* memory) override { pages_.give_back(memory); }

 private:
  HugePages pages_;
};

inline Status allocate_in_huge_pages(tensorflow::DataType type, const TensorShape& shape, Tensor* tensor) {
  *tensor = Tensor(HugePageAllocator::get(), type, shape);
  if (tensor->IsInitialized()) return tensorflow::OkStatus();
  return tensorflow::errors::ResourceExhausted("no memory for a matrix of ", shape.DebugString());
}

}  // namespace rtf
