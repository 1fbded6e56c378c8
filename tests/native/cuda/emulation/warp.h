// What lanes of a warp tell each other, atomics, fences, and loads and stores with a way through the caches.
#pragma once

#include "machine.h"

namespace rtf {
namespace emulation {

struct Vote {
  unsigned in, out;
};

inline unsigned vote(const char* name, unsigned mask, bool mine, const char* file, int line,
                     bool orders_memory = false) {
  Vote payload{mine ? 1u : 0u, 0};
  const Collective what{name, mask, &payload,
                        [](void** payloads, unsigned lanes) {
                          unsigned all = 0;
                          for (int lane = 0; lane < 32; ++lane)
                            if ((lanes >> lane & 1) != 0) all |= static_cast<Vote*>(payloads[lane])->in << lane;
                          for (int lane = 0; lane < 32; ++lane)
                            if ((lanes >> lane & 1) != 0) static_cast<Vote*>(payloads[lane])->out = all;
                        },
                        orders_memory};
  Machine::get().together(what, file, line);
  return payload.out;
}

template <class T>
struct Shuffle {
  T in, out;
  int from;
};

// from: the lane whose value is wanted. One that does not take part gives garbage.
template <class T>
T shuffle(const char* name, unsigned mask, T value, int from, const char* file, int line) {
  Shuffle<T> payload{value, value, from};
  const Collective what{name, mask, &payload, [](void** payloads, unsigned lanes) {
                          for (int lane = 0; lane < 32; ++lane) {
                            if ((lanes >> lane & 1) == 0) continue;
                            Shuffle<T>* mine = static_cast<Shuffle<T>*>(payloads[lane]);
                            if ((lanes >> mine->from & 1) != 0)
                              mine->out = static_cast<Shuffle<T>*>(payloads[mine->from])->in;
                            else
                              memset(static_cast<void*>(&mine->out), 0xff, sizeof mine->out);
                          }
                        }};
  Machine::get().together(what, file, line);
  return payload.out;
}

inline int lane() { return Machine::get().self()->index % 32; }
// The first lane of the calling one's group of `width`.
inline int group(int width) { return lane() & ~(width - 1); }

}  // namespace emulation

inline unsigned load_acquire(const unsigned* address) { return __atomic_load_n(address, __ATOMIC_ACQUIRE); }

inline void store_release(unsigned* address, unsigned value) {
  __atomic_store_n(address, value, __ATOMIC_RELEASE);
  emulation::Machine::get().stumble();
}

}  // namespace rtf

inline void __syncwarp(unsigned mask = 0xffffffffu RTF_CALLER_PARAMETER) {
  rtf::emulation::vote("__syncwarp", mask, false, RTF_CALLER, true);
}
inline unsigned __ballot_sync(unsigned mask, int predicate RTF_CALLER_PARAMETER) {
  return rtf::emulation::vote("__ballot_sync", mask, predicate != 0, RTF_CALLER);
}
inline int __any_sync(unsigned mask, int predicate RTF_CALLER_PARAMETER) {
  return rtf::emulation::vote("__any_sync", mask, predicate != 0, RTF_CALLER) != 0;
}
inline int __all_sync(unsigned mask, int predicate RTF_CALLER_PARAMETER) {
  return rtf::emulation::vote("__all_sync", mask, predicate == 0, RTF_CALLER) == 0;
}

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32 RTF_CALLER_PARAMETER) {
  const int lane = rtf::emulation::group(width) | (from & (width - 1));
  return rtf::emulation::shuffle("__shfl_sync", mask, value, lane, RTF_CALLER);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32 RTF_CALLER_PARAMETER) {
  const int lane = rtf::emulation::lane(), from = lane - static_cast<int>(delta);
  const bool inside = from >= rtf::emulation::group(width);
  return rtf::emulation::shuffle("__shfl_up_sync", mask, value, inside ? from : lane, RTF_CALLER);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32 RTF_CALLER_PARAMETER) {
  const int lane = rtf::emulation::lane(), from = lane + static_cast<int>(delta);
  const bool inside = from < rtf::emulation::group(width) + width;
  return rtf::emulation::shuffle("__shfl_down_sync", mask, value, inside ? from : lane, RTF_CALLER);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32 RTF_CALLER_PARAMETER) {
  const int lane = rtf::emulation::lane(), from = lane ^ bits;
  const bool inside = from < rtf::emulation::group(width) + width;
  return rtf::emulation::shuffle("__shfl_xor_sync", mask, value, inside ? from : lane, RTF_CALLER);
}

inline void __threadfence() { rtf::emulation::Machine::get().stumble(); }
inline void __threadfence_block() {}

#define RTF_ATOMIC(NAME, T, NEW)                                                                             \
  inline T NAME(T* address, T value) {                                                                       \
    rtf::emulation::Machine::get().stumble();                                                                \
    T old, result;                                                                                           \
    __atomic_load(address, &old, __ATOMIC_ACQUIRE);                                                          \
    do {                                                                                                     \
      result = NEW;                                                                                          \
    } while (!__atomic_compare_exchange(address, &old, &result, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)); \
    return old;                                                                                              \
  }
#define RTF_ATOMICS(T)                                                                                \
  RTF_ATOMIC(atomicAdd, T, old + value)                                                               \
  RTF_ATOMIC(atomicExch, T, value)                                                                    \
  RTF_ATOMIC(atomicMin, T, min(old, value))                                                           \
  RTF_ATOMIC(atomicMax, T, max(old, value))                                                           \
  inline T atomicCAS(T* address, T compare, T value) {                                                \
    rtf::emulation::Machine::get().stumble();                                                         \
    __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE); \
    return compare;                                                                                   \
  }
RTF_ATOMICS(int)
RTF_ATOMICS(unsigned)
RTF_ATOMICS(unsigned long long)
RTF_ATOMIC(atomicAdd, float, old + value)
RTF_ATOMIC(atomicExch, float, value)
RTF_ATOMIC(atomicAdd, double, old + value)
RTF_ATOMIC(atomicOr, unsigned, old | value)
RTF_ATOMIC(atomicAnd, unsigned, old& value)
#undef RTF_ATOMICS
#undef RTF_ATOMIC

namespace rtf {
inline unsigned add_release(unsigned* counter, unsigned amount) { return atomicAdd(counter, amount); }
}  // namespace rtf

#define RTF_CACHED(LOAD, STORE)     \
  template <class T>                \
  T LOAD(const T* address) {        \
    return *address;                \
  }                                 \
  template <class T>                \
  void STORE(T* address, T value) { \
    *address = value;               \
  }
RTF_CACHED(__ldcg, __stcg)
RTF_CACHED(__ldcs, __stcs)
RTF_CACHED(__ldcv, __stwt)
#undef RTF_CACHED
template <class T>
T __ldg(const T* address) {
  return *address;
}
