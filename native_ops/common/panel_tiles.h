// Sums over the depth on the tile unit (Intel AMX), for panel_product.h: 16 rows times up to four panels of columns, or
// 32 rows times up to two. Signed bytes times unsigned ones give int32, pairs of bfloat16 float.
#pragma once

#include <type_traits>

#include "tile_product.h"

namespace rtf {

constexpr int64_t kTileBytes = 64;  // of a row of a tile: 16 groups of a row, or a group of 16 columns

// For fewer rows, most of a tile is idle, and vectors are as fast.
constexpr int64_t kLeastRowsOfTiles = 4;

#if RTF_TILES

constexpr int64_t kSumsOfTile = kTileRows * 16;

// The rows of a product, each with zeros behind its groups up to a whole tile.
struct TileFactor {
  const uint8_t* rows;
  int64_t row_bytes;
};

// The indices of tiles are parts of instructions.
#if defined(__AMX_INT8__)
#define RTF_ADD_TILES(Sum, sums, x, w)             \
  do {                                             \
    if constexpr (std::is_same<Sum, float>::value) \
      _tile_dpbf16ps(sums, x, w);                  \
    else                                           \
      _tile_dpbsud(sums, x, w);                    \
  } while (false)
#else
#define RTF_ADD_TILES(Sum, sums, x, w) _tile_dpbf16ps(sums, x, w)
#endif

template <typename Sum, int kRows, int kPanels>
inline __attribute__((always_inline)) void add_tiles(const TileFactor& x, const uint8_t* w, int64_t panel) {
  static_assert(kRows == 1 ? kPanels <= 4 : kPanels <= 2, "what the tile unit has room for");
  _tile_loadd(4, x.rows, x.row_bytes);
  if (kRows == 2) {
    _tile_loadd(5, x.rows + kTileRows * x.row_bytes, x.row_bytes);
    _tile_loadd(6, w, kTileBytes);
    RTF_ADD_TILES(Sum, 0, 4, 6);
    RTF_ADD_TILES(Sum, 2, 5, 6);
    if (kPanels < 2) return;
    _tile_loadd(7, w + panel, kTileBytes);
    RTF_ADD_TILES(Sum, 1, 4, 7);
    RTF_ADD_TILES(Sum, 3, 5, 7);
    return;
  }
  _tile_loadd(5, w, kTileBytes);
  RTF_ADD_TILES(Sum, 0, 4, 5);
  if (kPanels < 2) return;
  _tile_loadd(6, w + panel, kTileBytes);
  RTF_ADD_TILES(Sum, 1, 4, 6);
  if (kPanels < 3) return;
  _tile_loadd(7, w + 2 * panel, kTileBytes);
  RTF_ADD_TILES(Sum, 2, 4, 7);
  if (kPanels < 4) return;
  _tile_loadd(5, w + 3 * panel, kTileBytes);
  RTF_ADD_TILES(Sum, 3, 4, 5);
}

// sums [kRows][2 or, of 16 rows, 4 panels][16 rows][16 columns]; each panel has 64 bytes for each of the groups.
template <int kRows, int kPanels, typename Sum>
inline void tile_sums(TileFactor x, const uint8_t* w, int64_t groups, Sum* sums) {
  const int64_t panel = groups * kTileBytes, rest = groups % kTileRows;
  zero_sums();
  for (int64_t tile = 0; tile < groups / kTileRows; ++tile) {
    add_tiles<Sum, kRows, kPanels>(x, w, panel);
    x.rows += kTileBytes, w += kTileRows * kTileBytes;
  }
  if (rest) {  // what is behind the groups may be no memory of the matrix
    alignas(64) uint8_t last[kPanels][kTileRows * kTileBytes] = {};
    for (int p = 0; p < kPanels; ++p) std::memcpy(last[p], w + p * panel, rest * kTileBytes);
    TileUnit::finish_writing(last);
    add_tiles<Sum, kRows, kPanels>(x, last[0], sizeof(last[0]));
  }
  constexpr int64_t kRowOfSums = 16 * sizeof(Sum);
  _tile_stored(0, sums, kRowOfSums);
  _tile_stored(1, sums + kSumsOfTile, kRowOfSums);
  _tile_stored(2, sums + 2 * kSumsOfTile, kRowOfSums);
  _tile_stored(3, sums + 3 * kSumsOfTile, kRowOfSums);
}

#undef RTF_ADD_TILES
#endif

}  // namespace rtf
