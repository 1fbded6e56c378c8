// Sums over the depth on the tile unit (Intel AMX), exact in int32: 16 rows times up to four panels of columns, or 32
// rows times up to two. As in dot.h, they are of the stored bytes, which are 128 too large.
#pragma once

#include "../common/tile_product.h"

#if RTF_TILES && defined(__AMX_INT8__) && defined(__AVX512VNNI__)
#define RTF_INT8_TILES 1
#else
#define RTF_INT8_TILES 0
#endif

namespace rtf {

constexpr int64_t kTileBytes = 64;  // of a row of a tile: so many steps of the depth, or four of them for 16 columns

#if RTF_INT8_TILES

constexpr int64_t kSumsOfTile = kTileRows * 16;

// For fewer rows, most of a tile is idle, and vectors are as fast.
constexpr int64_t kLeastRowsOfTiles = 4;

// The rows of a product: whole tiles of memory, with zeros behind the depth.
struct TileFactor {
  const int8_t* rows;
  int64_t row_bytes;
};

template <int kRows, int kPanels>
inline __attribute__((always_inline)) void add_tiles(const TileFactor& x, const uint8_t* w, int64_t panel) {
  static_assert(kRows == 1 ? kPanels <= 4 : kPanels <= 2, "what the tile unit has room for");
  _tile_loadd(4, x.rows, x.row_bytes);
  if (kRows == 2) {
    _tile_loadd(5, x.rows + kTileRows * x.row_bytes, x.row_bytes);
    _tile_loadd(6, w, kTileBytes);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(2, 5, 6);
    if (kPanels < 2) return;
    _tile_loadd(7, w + panel, kTileBytes);
    _tile_dpbsud(1, 4, 7);
    _tile_dpbsud(3, 5, 7);
    return;
  }
  _tile_loadd(5, w, kTileBytes);
  _tile_dpbsud(0, 4, 5);
  if (kPanels < 2) return;
  _tile_loadd(6, w + panel, kTileBytes);
  _tile_dpbsud(1, 4, 6);
  if (kPanels < 3) return;
  _tile_loadd(7, w + 2 * panel, kTileBytes);
  _tile_dpbsud(2, 4, 7);
  if (kPanels < 4) return;
  _tile_loadd(5, w + 3 * panel, kTileBytes);
  _tile_dpbsud(3, 4, 5);
}

// sums [kRows][2 or, of 16 rows, 4 panels][16 rows][16 columns]; each panel has 64 bytes for each of the groups.
template <int kRows, int kPanels>
inline void tile_sums(TileFactor x, const uint8_t* w, int64_t groups, int32_t* sums) {
  const int64_t panel = groups * kTileBytes, rest = groups % kTileRows;
  zero_sums();
  for (int64_t tile = 0; tile < groups / kTileRows; ++tile) {
    add_tiles<kRows, kPanels>(x, w, panel);
    x.rows += kTileBytes, w += kTileRows * kTileBytes;
  }
  if (rest) {  // what is behind the groups may be no memory of the matrix
    alignas(64) uint8_t last[kPanels][kTileRows * kTileBytes] = {};
    for (int p = 0; p < kPanels; ++p) std::memcpy(last[p], w + p * panel, rest * kTileBytes);
    TileUnit::finish_writing(last);
    add_tiles<kRows, kPanels>(x, last[0], sizeof(last[0]));
  }
  constexpr int64_t kRowOfSums = 16 * sizeof(int32_t);
  _tile_stored(0, sums, kRowOfSums);
  _tile_stored(1, sums + kSumsOfTile, kRowOfSums);
  _tile_stored(2, sums + 2 * kSumsOfTile, kRowOfSums);
  _tile_stored(3, sums + 3 * kSumsOfTile, kRowOfSums);
}

#endif

}  // namespace rtf
