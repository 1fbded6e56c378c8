// What the forms of Philox (Salmon et al. 2011) for CPU and GPU have in common; see philox.h.
#pragma once

#include <cmath>
#include <cstdint>

namespace rtf {

struct PhiloxState {
  uint64_t key, counter[2];
};

constexpr int kPhiloxRounds = 10;
constexpr uint32_t kPhiloxFactor0 = 0xD2511F53u, kPhiloxFactor1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxKeyStep0 = 0x9E3779B9u, kPhiloxKeyStep1 = 0xBB67AE85u;
constexpr uint32_t kUniformBits = 0x7FFFFFu;  // of a number, which make the uniform one in [0, 1)

// A dropout of a rate keeps number i if these bits of random number i are at least this.
inline uint32_t least_kept(float rate) {
  return static_cast<uint32_t>(std::ceil(static_cast<double>(rate) * (kUniformBits + 1)));
}

}  // namespace rtf
