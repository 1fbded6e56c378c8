// What native_ops/common/cuda/mma.h has for the GPU.
#pragma once

#include "machine.h"

namespace rtf {
namespace emulation {

struct Fragments {
  float* d;
  const uint32_t *a, *b;
};

inline float tf32_value(uint32_t bits) { return same_bits<float>(bits & 0xffffe000u); }
inline float bf16_value(uint32_t half_word) { return same_bits<float>(half_word << 16); }
inline float f16_value(uint32_t half_word) { return same_bits<_Float16>(static_cast<uint16_t>(half_word)); }

// The product of a warp: A and B are gathered from the lanes, D += A B in double precision, rounded once.
// K: 8 with one number per register, 16 with two; or 8 with two, in half as many registers
template <int K, float (*value)(uint32_t), int kPacked = K / 8>
void multiply(void** payloads, unsigned lanes) {
  constexpr int kHalves = K / kPacked / 4;
  float a[16][K], b[K][8];
  if (lanes != 0xffffffffu) memset(a, 0xff, sizeof a), memset(b, 0xff, sizeof b);  // as bad as on the GPU
  for (int lane = 0; lane < 32; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const Fragments& mine = *static_cast<Fragments*>(payloads[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < kPacked; ++i) {
      const int shift = 16 * i, k = t * kPacked + i;
      const uint32_t mask = kPacked == 1 ? 0xffffffffu : 0xffffu;
      for (int half = 0; half < kHalves; ++half) {
        a[g][k + half * K / 2] = value(mine.a[2 * half] >> shift & mask);
        a[g + 8][k + half * K / 2] = value(mine.a[2 * half + 1] >> shift & mask);
        b[k + half * K / 2][g] = value(mine.b[half] >> shift & mask);
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    float* d = static_cast<Fragments*>(payloads[lane])->d;
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = d[i];
      for (int k = 0; k < K; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
      d[i] = static_cast<float>(sum);
    }
  }
}

// Puts what a thread began to copy at its place. keep: so many groups at the end may wait.
inline void finish_copies(Fiber* fiber, size_t keep) {
  auto& groups = fiber->copies;
  while (groups.size() > keep + 1) {
    for (const Copy& copy : groups.front()) memcpy(copy.to, copy.bytes, static_cast<size_t>(copy.size));
    groups.erase(groups.begin());
  }
}

// The copy arrives at once, or when it is waited for; until then there is garbage.
inline void begin_copy(void* shared, const void* global, int size, int bytes, const char* file, int line) {
  Machine& machine = Machine::get();
  if (reinterpret_cast<uintptr_t>(shared) % size != 0 || reinterpret_cast<uintptr_t>(global) % size != 0)
    machine.fail("an address is no multiple of " + std::to_string(size), "cp_async", file, line);
  Copy copy{};
  copy.to = static_cast<unsigned char*>(shared);
  copy.size = size;
  memcpy(copy.bytes, global, static_cast<size_t>(bytes));
  if (machine.chance(2)) {
    memcpy(shared, copy.bytes, static_cast<size_t>(size));
    return;
  }
  memset(shared, 0xff, static_cast<size_t>(size));
  machine.self()->copies.back().push_back(copy);
}

}  // namespace emulation

inline uint32_t to_tf32(float value) {
  const uint32_t bits = emulation::same_bits<uint32_t>(value);
  return value == value ? (bits + 0x1000u) & 0xffffe000u : 0x7fffffffu;
}

#define RTF_MMA(NAME, K, VALUE)                                                                                    \
  inline void NAME(float d[4], const uint32_t a[4], const uint32_t b[2] RTF_CALLER_PARAMETER) {                    \
    emulation::Fragments payload{d, a, b};                                                                         \
    emulation::Machine::get().together({#NAME, 0xffffffffu, &payload, emulation::multiply<K, VALUE>}, RTF_CALLER); \
  }
RTF_MMA(mma_m16n8k8_tf32, 8, emulation::tf32_value)
RTF_MMA(mma_m16n8k16_bf16, 16, emulation::bf16_value)
RTF_MMA(mma_m16n8k16_f16, 16, emulation::f16_value)
#undef RTF_MMA

inline void mma_m16n8k8_bf16(float d[4], const uint32_t a[2], uint32_t b RTF_CALLER_PARAMETER) {
  emulation::Fragments payload{d, a, &b};
  emulation::Machine::get().together(
      {"mma_m16n8k8_bf16", 0xffffffffu, &payload, emulation::multiply<8, emulation::bf16_value, 2>}, RTF_CALLER);
}

inline void cp_async16(void* shared, const void* global, int bytes = 16 RTF_CALLER_PARAMETER) {
  emulation::begin_copy(shared, global, 16, bytes, RTF_CALLER);
}
inline void cp_async_commit() { emulation::Machine::get().self()->copies.emplace_back(); }
template <int N>
void cp_async_wait() {
  emulation::finish_copies(emulation::Machine::get().self(), N);
}

}  // namespace rtf
