// Tensors in large pages.
#pragma once

#include "../common/tf_op.h"
#include "huge_pages.h"

namespace rtf {

class HugePageAllocator : public Allocator {
 public:
  // The one of this library. It is never destroyed: a tensor may live longer than anything else.
  static HugePageAllocator* get() {
    static auto* const allocator = new HugePageAllocator;
    return allocator;
  }

  void* allocate(size_t alignment, size_t bytes) override {
    return alignment <= HugePages::kLine ? pages_.take(bytes) : nullptr;
  }
  void deallocate(void* memory) override { pages_.give_back(memory); }

 private:
  HugePageAllocator() : Allocator("rtf_huge_pages") {}

  HugePages pages_;
};

inline Status allocate_in_huge_pages(DataType type, const TensorShape& shape, Tensor* tensor) {
  if (HugePageAllocator::get()->make(type, shape, tensor)) return OkStatus();
  return ResourceExhausted("no memory for a matrix of ", shape.DebugString());
}

}  // namespace rtf
