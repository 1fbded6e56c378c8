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

// For the loops of a product, 8192 or 16384 multiplications each: all they access are arrays of fixed sizes, so that
// sanitizers, which make them ten times slower, have nothing to find there.
#define RTF_UNCHECKED __attribute__((no_sanitize("address", "undefined")))

template <typename Number, int kColumns>
struct Numbers {
  Number values[16][kColumns];
};

// [16, columns], as they lie in memory
template <typename Number, int kColumns>
Numbers<Number, kColumns> numbers(const Tile& of) {
  static_assert(sizeof(Number) * kColumns == 64, "a row of a tile has 64 bytes");
  Numbers<Number, kColumns> result;
  std::memcpy(&result, of.bytes, sizeof(result));
  return result;
}

// The tile of sums, plus what a function adds of the tiles x and w
template <typename Sum, typename Function>
void add(int sums, int x, int w, const Function& sum_up) {
  demand(configured() && sums != x && sums != w && x != w, "operands of a product are three tiles");
  Numbers<Sum, 16> results = numbers<Sum, 16>(tile(sums));
  sum_up(&results, tile(x), tile(w));
  std::memcpy(tile(sums).bytes, &results, sizeof(results));
}

// w[k / 4][4 * n + k % 4] is multiplied with x[m][k]
RTF_UNCHECKED inline void add_bytes(Numbers<uint32_t, 16>* sums, const Tile& x, const Tile& w) {
  const Numbers<int8_t, 64> rows = numbers<int8_t, 64>(x);
  for (int m = 0; m < 16; ++m)
    for (int k = 0; k < 64; ++k)
      for (int n = 0; n < 16; ++n)
        sums->values[m][n] += static_cast<uint32_t>(rows.values[m][k] * int32_t{w.bytes[k / 4][4 * n + k % 4]});
}

// w[k / 2][2 * n + k % 2] is multiplied with x[m][k]. Products of even and of odd k are summed up apart, from 0.
RTF_UNCHECKED inline void add_bfloat16(Numbers<float, 16>* sums, const Tile& x, const Tile& w) {
  const Numbers<uint16_t, 32> factors[2] = {numbers<uint16_t, 32>(x), numbers<uint16_t, 32>(w)};
  Numbers<float, 32> wide[2];
  for (int i = 0; i < 2; ++i)
    for (int row = 0; row < 16; ++row)
      for (int column = 0; column < 32; ++column) {
        const uint32_t bits = static_cast<uint32_t>(factors[i].values[row][column]) << 16;
        std::memcpy(&wide[i].values[row][column], &bits, sizeof(bits));
      }
  for (int m = 0; m < 16; ++m) {
    float partial[2][16] = {};
    for (int k = 0; k < 32; ++k)
      for (int n = 0; n < 16; ++n)
        partial[k % 2][n] = std::fma(wide[0].values[m][k], wide[1].values[k / 2][2 * n + k % 2], partial[k % 2][n]);
    for (int n = 0; n < 16; ++n) sums->values[m][n] += partial[0][n] + partial[1][n];
  }
}

#undef RTF_UNCHECKED

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
