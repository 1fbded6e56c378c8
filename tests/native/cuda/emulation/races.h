// What the thread sanitizer has to know: which thread of CUDA runs, and what orders the accesses of two of them.
//
// Barriers, __syncwarp and atomics do. Shuffles, votes and products on tensor cores do not, as CUDA's manual says.
// Atomics count as if they had fences around them, so a missing __threadfence is not found.
#pragma once

#include <stddef.h>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace rtf {
namespace emulation {

// While it lives the accesses of this fiber are the emulator's own.
struct Unwatched {
  Unwatched() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
  ~Unwatched() { AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

// All that this fiber did comes before what others do after their after() of the same place.
inline void before(void* place) { __tsan_release(place); }
inline void after(void* place) { __tsan_acquire(place); }

// A thread of CUDA for the sanitizer; costly, so it is used for one launch after another.
inline void* new_fiber() { return __tsan_create_fiber(0); }
inline void* this_fiber() { return __tsan_get_current_fiber(); }
inline void become(void* fiber) { __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync); }

}  // namespace emulation
}  // namespace rtf

#else

namespace rtf {
namespace emulation {

struct Unwatched {
  Unwatched() {}
};
inline void before(void*) {}
inline void after(void*) {}
inline void* new_fiber() { return nullptr; }
inline void* this_fiber() { return nullptr; }
inline void become(void*) {}

}  // namespace emulation
}  // namespace rtf

#endif
