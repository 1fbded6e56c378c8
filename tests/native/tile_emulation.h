// The tile unit (Intel AMX) in plain C++, for CPUs without one: to be included before all else (-include), so that the
// native ops find its instructions. Operands of the wrong kind end the program.
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1

namespace emulated {

struct Tile {
  uint8_t bytes[16][64];
};

inline Tile& tile(int index) {
  static thread_local Tile tiles[8];
  return tiles[index];
}

inline bool& configured() {
  static thread_local bool value = false;
  return value;
}

inline void demand(bool good, const char* what) {
  if (!good) std::printf("%s\n", what), std::abort();
}

inline void load_config(const void* memory) {
  const uint8_t* bytes = static_cast<const uint8_t*>(memory);
  demand(bytes[0] == 1, "palette");
  for (int i = 0; i < 8; ++i) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, bytes + 16 + 2 * i, sizeof(row_bytes));
    demand(row_bytes == 64 && bytes[48 + i] == 16, "tiles are emulated with 16 rows of 64 bytes");
    tile(i) = Tile{};
  }
  configured() = true;
}

inline void load(int to, const void* from, int64_t stride) {
  demand(configured(), "a tile is loaded without a configuration");
  for (int row = 0; row < 16; ++row)
    std::memcpy(tile(to).bytes[row], static_cast<const uint8_t*>(from) + row * stride, 64);
}

inline void store(int from, void* to, int64_t stride) {
  demand(configured(), "a tile is stored without a configuration");
  for (int row = 0; row < 16; ++row) std::memcpy(static_cast<uint8_t*>(to) + row * stride, tile(from).bytes[row], 64);
}

template <typename Number>
Number at(const Tile& of, int row, int column) {
  Number value;
  std::memcpy(&value, of.bytes[row] + column * sizeof(Number), sizeof(Number));
  return value;
}

// sums[m][n] = sum(sums[m][n], row m of x, column n of w)
template <typename Sum, typename Function>
void add(int sums, int x, int w, const Function& sum) {
  demand(configured() && sums != x && sums != w && x != w, "operands of a product are three tiles");
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      const Sum value = sum(at<Sum>(tile(sums), m, n), tile(x), m, tile(w), n);
      std::memcpy(tile(sums).bytes[m] + n * sizeof(Sum), &value, sizeof(Sum));
    }
}

inline uint32_t add_bytes(uint32_t sum, const Tile& x, int m, const Tile& w, int n) {
  for (int k = 0; k < 64; ++k)
    sum += static_cast<uint32_t>(at<int8_t>(x, m, k) * static_cast<int32_t>(at<uint8_t>(w, k / 4, 4 * n + k % 4)));
  return sum;
}

inline float widened(uint16_t number) {
  const uint32_t bits = static_cast<uint32_t>(number) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The numbers of even and of odd places are summed up apart, from 0.
inline float add_bfloat16(float sum, const Tile& x, int m, const Tile& w, int n) {
  float sums[2] = {0, 0};
  for (int k = 0; k < 32; ++k)
    sums[k % 2] = std::fma(widened(at<uint16_t>(x, m, k)), widened(at<uint16_t>(w, k / 2, 2 * n + k % 2)), sums[k % 2]);
  return sum + (sums[0] + sums[1]);
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#define _tile_loadconfig(memory) emulated::load_config(memory)
#define _tile_release() (emulated::configured() = false)
#define _tile_zero(index) (emulated::tile(index) = emulated::Tile{})
#define _tile_loadd(to, from, stride) emulated::load(to, from, stride)
#define _tile_stored(from, to, stride) emulated::store(from, to, stride)
#define _tile_dpbf16ps(sums, x, w) emulated::add<float>(sums, x, w, emulated::add_bfloat16)
#define _tile_dpbsud(sums, x, w) emulated::add<uint32_t>(sums, x, w, emulated::add_bytes)
// The permission that Linux gives.
#define syscall(...) 0
