// Scratch memory. The code that takes the arrays of a pass also says how much memory they need: it runs once with an
// arena that only measures, and once with the memory of that size.
#pragma once

#include <algorithm>
#include <cstdint>

#include "vector.h"

namespace rtf {

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
inline int64_t whole_vectors(int64_t n) { return round_up(n, kLanes); }

// Gives out arrays, each of which begins at a whole vector.
class Arena {
 public:
  Arena() = default;  // measures: all arrays are null
  // The memory of one of several layouts of this size, see scratch_of.
  explicit Arena(float* memory, int64_t index = 0, int64_t size = 0) {
    const uintptr_t step = kLanes * sizeof(float), at = reinterpret_cast<uintptr_t>(memory);
    begin_ = reinterpret_cast<float*>((at + step - 1) / step * step) + index * size;
  }

  float* take(int64_t n) {
    float* array = begin_ ? begin_ + size_ : nullptr;
    size_ += whole_vectors(n);
    return array;
  }

  bool measures() const { return begin_ == nullptr; }
  int64_t size() const { return size_; }  // floats given out so far

 private:
  float* begin_ = nullptr;
  int64_t size_ = 0;
};

// Floats that a layout takes: a class whose constructor takes its arrays from an arena.
template <typename Layout, typename... Sizes>
int64_t size_of(const Sizes&... sizes) {
  Arena arena;
  Layout(arena, sizes...);
  return arena.size();
}

// What to allocate for a number of such layouts, so that the first one can begin at a whole vector.
inline int64_t scratch_of(int64_t size, int64_t n_layouts = 1) { return n_layouts * size + kLanes; }

}  // namespace rtf
