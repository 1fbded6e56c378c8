// Matrices packed for the tile unit; see tiles.h.
#pragma once

#include "tiles.h"

namespace rtf {

#if RTF_PAIRS

// The first n of kLanes entries, for any n.
inline Vec load_some(const float* p, int64_t n) {
  return n >= kLanes ? load(p) : n > 0 ? load_part(p, static_cast<int>(n)) : Vec{};
}

// rows[i][j] <-> rows[j][i]
inline void transpose(__m512i (&rows)[16]) {
#pragma GCC unroll 4
  for (int step = 1; step < 16; step *= 2) {
    alignas(64) int32_t first[16], second[16];
    for (int lane = 0; lane < 16; ++lane) {
      first[lane] = lane & step ? 16 + lane - step : lane;
      second[lane] = lane & step ? 16 + lane : lane + step;
    }
    const __m512i of_first = _mm512_load_si512(first), of_second = _mm512_load_si512(second);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      if (i & step) continue;
      const __m512i x = rows[i], y = rows[i + step];
      rows[i] = _mm512_permutex2var_epi32(x, of_first, y);
      rows[i + step] = _mm512_permutex2var_epi32(x, of_second, y);
    }
  }
}

// Both vectors rounded half to even, one behind the other.
inline __m512i rounded_to_pairs(Vec first, Vec second) {
  return (__m512i)_mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(second), reinterpret_cast<__m512>(first));
}

// Numbers 0, 16, 1, 17, ...
inline __m512i alternating(__m512i x) {
  alignas(64) int16_t order[2 * kLanes];
  for (int16_t i = 0; i < 2 * kLanes; ++i) order[i] = static_cast<int16_t>(i / 2 + i % 2 * kLanes);
  return _mm512_maskz_permutexvar_epi16(0xFFFFFFFF, _mm512_load_si512(order), x);
}

// 16 x 32 numbers: a vector has the pairs along the depth of one of the 16, or one pair of all of them.
template <int kParts>
struct Pairs {
  __m512i parts[kParts][kTileRows];

  // load(i, k) returns the numbers k .. k + 15 of the i-th of the 16.
  template <typename Load>
  static Pairs along(const Load& load) {
    Pairs pairs;
    for (int i = 0; i < kTileRows; ++i) {
      if constexpr (kParts == 1) {
        pairs.parts[0][i] = rounded_to_pairs(load(i, 0), load(i, kLanes));
        continue;
      }
      const Split<kParts> first(load(i, 0)), second(load(i, kLanes));
      for (int part = 0; part < kParts; ++part) pairs.parts[part][i] = joined(first.parts[part], second.parts[part]);
    }
    return pairs;
  }

  // load(k) returns the k-th number of all 16.
  template <typename Load>
  static Pairs across(const Load& load) {
    Pairs pairs;
    for (int i = 0; i < kTileRows; ++i) {
      if constexpr (kParts == 1) {
        pairs.parts[0][i] = alternating(rounded_to_pairs(load(2 * i), load(2 * i + 1)));
        continue;
      }
      const Split<kParts> first(load(2 * i)), second(load(2 * i + 1));
      for (int part = 0; part < kParts; ++part)
        pairs.parts[part][i] =
            _mm512_or_si512(_mm512_maskz_cvtepu16_epi32(kAllLanes, first.parts[part]), widened(second.parts[part]));
    }
    return pairs;
  }

  Pairs& transpose() {
    for (int part = 0; part < kParts; ++part) rtf::transpose(parts[part]);
    return *this;
  }

  void store(Bfloat16* to) const {
    for (int part = 0; part < kParts; ++part)
      for (int64_t i = 0; i < kTileRows; ++i) _mm512_storeu_si512(to + part * kTile + i * kTileDepth, parts[part][i]);
  }
};

// Both factors of a product are packed as [depth / 32][part of the number][16][32]: the first one with 16 rows of 32
// numbers, the second one with 16 pairs along the depth for each of 16 columns. Only n of these rows or columns exist.

// From 16 rows or columns that are adjacent in memory: number k is step floats after number k - 1.
template <int kParts>
inline Pairs<kParts> pairs_across(const float* from, int64_t step, int64_t depth, int n) {
  if (n == kTileRows && depth >= kTileDepth)
    return Pairs<kParts>::across([&](int64_t k) { return load(from + k * step); });
  return Pairs<kParts>::across([&](int64_t k) { return k < depth ? load_some(from + k * step, n) : Vec{}; });
}

// From rows or columns that are contiguous: the next one is step floats further.
template <int kParts>
inline Pairs<kParts> pairs_along(const float* from, int64_t step, int64_t depth, int n) {
  if (n == kTileRows && depth >= kTileDepth)
    return Pairs<kParts>::along([&](int i, int64_t k) { return load(from + i * step + k); });
  return Pairs<kParts>::along(
      [&](int i, int64_t k) { return i < n ? load_some(from + i * step + k, depth - k) : Vec{}; });
}

// function(k, memory) for the pieces of a depth.
template <int kParts, typename Function>
inline void for_depth(int64_t blocks, Bfloat16* to, const Function& function) {
  for (int64_t block = 0; block < blocks; ++block) function(block * kTileDepth, to + block * kParts * kTile);
}

template <int kParts>
inline void pack_columns(const float* w, int64_t step, int64_t depth, int n, Bfloat16* to) {
  for_depth<kParts>(tile_blocks(depth), to, [&](int64_t k, Bfloat16* tile) {
    pairs_across<kParts>(w + k * step, step, depth - k, n).store(tile);
  });
}

// The depth may consist of parts; see tile_blocks.
template <int kParts>
inline void pack_columns_transposed(const float* w, int64_t step, int64_t depth, int parts, int n, Bfloat16* to) {
  const int64_t width = depth / parts, padded = round_up(width, kLanes);
  for_depth<kParts>(tile_blocks(depth, parts), to, [&](int64_t k0, Bfloat16* tile) {
    const auto load = [&](int i, int64_t k) {
      const int64_t part = (k0 + k) / padded, u = (k0 + k) % padded;
      return i < n && part < parts ? load_some(w + i * step + part * width + u, width - u) : Vec{};
    };
    Pairs<kParts>::along(load).transpose().store(tile);
  });
}

#else

template <int kParts>
inline void pack_columns(const float*, int64_t, int64_t, int, Bfloat16*) {}
template <int kParts>
inline void pack_columns_transposed(const float*, int64_t, int64_t, int, int, Bfloat16*) {}

#endif

}  // namespace rtf
