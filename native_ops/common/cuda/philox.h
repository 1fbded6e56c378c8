// TensorFlow's stateless random numbers on the GPU, the same as those of common/philox.h, one group of four at a time.
#pragma once

#include "../philox_numbers.h"
#include "device.h"

namespace rtf {

// Numbers 4 * group ... of the array that begins at a counter.
__device__ __forceinline__ uint4 philox_group(uint64_t key, uint64_t counter_low, uint64_t counter_high,
                                              uint64_t group) {
  const uint64_t low = counter_low + group, high = counter_high + (low < group);
  uint32_t c0 = static_cast<uint32_t>(low), c1 = static_cast<uint32_t>(low >> 32);
  uint32_t c2 = static_cast<uint32_t>(high), c3 = static_cast<uint32_t>(high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = uint64_t(c0) * kPhiloxFactor0, p1 = uint64_t(c2) * kPhiloxFactor1;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += kPhiloxKeyStep0;
    k1 += kPhiloxKeyStep1;
  }
  return make_uint4(c0, c1, c2, c3);
}

// Whether a dropout keeps what has this random number; see least_kept.
__device__ __forceinline__ bool is_kept(uint32_t number, uint32_t least) { return (number & kUniformBits) >= least; }

// Bit k says whether number first + k * kWarp + lane of an array is kept, of the 128 numbers from the first one on. For
// a whole warp: each lane draws a group of four, and all of them one more if the first number is not that of a group.
__device__ __forceinline__ unsigned kept_of_lane(const PhiloxState& state, uint64_t first, uint32_t least) {
  const auto kept_of_group = [&](uint64_t group) {
    const uint4 n = philox_group(state.key, state.counter[0], state.counter[1], group);
    return is_kept(n.x, least) | is_kept(n.y, least) << 1 | is_kept(n.z, least) << 2 | is_kept(n.w, least) << 3;
  };
  const unsigned lane = threadIdx.x % kWarp, shift = static_cast<unsigned>(first % 4);
  const unsigned mine = kept_of_group(first / 4 + lane), beyond = shift ? kept_of_group(first / 4 + kWarp) : 0u;
  unsigned kept = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const unsigned number = shift + k * kWarp + lane;
    const unsigned there = __shfl_sync(kAllLanes, mine, static_cast<int>(number / 4) % kWarp);
    kept |= ((number / 4 < kWarp ? there : beyond) >> number % 4 & 1u) << k;
  }
  return kept;
}

}  // namespace rtf
