// Products of floats on the tile unit of newer CPUs (Intel AMX), which multiplies bfloat16 and sums in float.
//
// A float is split into three bfloat16 numbers: high, middle and low, 8 bits each (Henry et al. 2019, arXiv
// 1904.06376). Of the nine products of the parts of two floats the six largest are summed; the rest is below 2^-25 of
// the total. Results are at least as accurate as with float arithmetic, at more than twice its speed, with two
// exceptions: infinity, and numbers above the largest bfloat16 (3.39e38), become NaN in a product; and the unit flushes
// numbers below 1.2e-38 to 0, also the lower parts of a split, so that a number below 1e-33 has fewer bits than a
// float.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "vector.h"

// Whether vectors are rounded to bfloat16, and multiplied as pairs of such numbers, by one instruction.
#if defined(__AVX512BF16__) && defined(__AVX512F__)
#define RTF_PAIRS 1
#include <immintrin.h>
#else
#define RTF_PAIRS 0
#endif

#if RTF_PAIRS && defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__linux__)
#define RTF_TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define RTF_TILES 0
#endif

namespace rtf {

typedef uint16_t Bfloat16;

constexpr int64_t kTileRows = 16;   // rows of a result, and of one of its factors
constexpr int64_t kTileDepth = 32;  // numbers per row or column of a factor's tile
constexpr int kSplit = 3;           // parts of a number: high, middle, low
constexpr int64_t kTile = kTileRows * kTileDepth;
constexpr int64_t kSplitTile = kSplit * kTile;

// A depth that consists of parts, such as the gates of a cell: each begins at a multiple of kLanes, padded with 0.
inline int64_t tile_blocks(int64_t depth, int parts = 1) {
  return (parts * round_up(depth / parts, kLanes) + kTileDepth - 1) / kTileDepth;
}

// The rows that a product reads: [row / 16][depth / 32][part of the number][row % 16][32]. Without memory, writes are
// ignored.
struct TileRows {
  Bfloat16* data = nullptr;
  int64_t blocks = 0;  // tile_blocks of the depth

  explicit operator bool() const { return RTF_TILES && data; }

  int64_t block_size() const { return blocks * kSplitTile; }
  const Bfloat16* block(int64_t index) const { return data + index * block_size(); }
  TileRows from_block(int64_t index) const { return data ? TileRows{data + index * block_size(), blocks} : TileRows{}; }

  void clear(int64_t n_rows) const {
    if (*this) std::memset(data, 0, (n_rows + kTileRows - 1) / kTileRows * block_size() * sizeof(Bfloat16));
  }

  // The numbers k .. k + n - 1 of a row, k a multiple of kLanes; padded with zeros to the next multiple.
  template <bool kWhole>
  void put(int64_t row, int64_t k, Vec x, int n) const;
};

#if RTF_PAIRS

// GCC 12 warns about the unmasked forms.
constexpr __mmask16 kAllLanes = 0xFFFF;

// bfloat16 numbers in the upper half of their float.
inline __m512i widened(__m256i x) {
  return _mm512_maskz_slli_epi32(kAllLanes, _mm512_maskz_cvtepu16_epi32(kAllLanes, x), 16);
}

inline __m512i joined(__m256i low, __m256i high) {
  return _mm512_mask_broadcast_i64x4(_mm512_maskz_broadcast_i64x4(0x0F, low), 0xF0, high);
}

// x = the sum of the parts; a single one is x rounded half to even. Infinity leaves infinity minus infinity: NaN.
template <int kParts>
struct Split {
  __m256i parts[kParts];

  explicit Split(Vec vector) {
    __m512 x = reinterpret_cast<__m512>(vector);
    for (int part = 0; part < kParts; ++part) {
      parts[part] = (__m256i)_mm512_cvtneps_pbh(x);
      x = _mm512_sub_ps(x, _mm512_castsi512_ps(widened(parts[part])));
    }
  }
};

#endif

#if RTF_TILES

// Whether Linux lets this process use the tile unit, for which it has to ask.
inline bool tiles_work() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

template <bool kWhole>
inline void TileRows::put(int64_t row, int64_t k, Vec x, int n) const {
  if (!data) return;
  if (!kWhole) x = reinterpret_cast<Vec>(_mm512_maskz_mov_ps((1u << n) - 1, reinterpret_cast<__m512>(x)));
  const Split<kSplit> split(x);
  Bfloat16* to = data + row / kTileRows * block_size() + k / kTileDepth * kSplitTile;
  to += row % kTileRows * kTileDepth + k % kTileDepth;
  for (int part = 0; part < kSplit; ++part)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + part * kTile), split.parts[part]);
}

#else

inline bool tiles_work() { return false; }

template <bool kWhole>
inline void TileRows::put(int64_t, int64_t, Vec, int) const {}

#endif

}  // namespace rtf
