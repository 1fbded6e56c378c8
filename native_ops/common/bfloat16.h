// bfloat16: the upper half of the bits of a float.
#pragma once

#include <cstdint>
#include <cstring>

namespace rtf {

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Half to even; NaN stays NaN.
inline uint16_t rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint32_t number = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : number);
}

}  // namespace rtf
