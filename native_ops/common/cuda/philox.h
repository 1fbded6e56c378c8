// TensorFlow's stateless random numbers on the GPU, the same as those of common/philox.h, one group of four at a time.
#pragma once

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
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(c0) * 0xD2511F53u, p1 = uint64_t(c2) * 0xCD9E8D57u;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(c0, c1, c2, c3);
}

// A dropout of a rate keeps number i if the low 23 bits of random number i are at least this.
inline uint32_t least_kept(float rate) {
  const double bound = static_cast<double>(rate) * (1 << 23);
  const uint32_t whole = static_cast<uint32_t>(bound);
  return whole + (whole < bound);
}

__device__ __forceinline__ bool is_kept(uint32_t number, uint32_t least) { return (number & 0x7FFFFFu) >= least; }

}  // namespace rtf
