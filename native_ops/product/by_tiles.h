// Products on the tile unit (common/tiles.h): the rows of a piece are packed while it multiplies those of the previous
// one.
#pragma once

#include "../common/tile_packing.h"
#include "../common/tile_product.h"
#include "by_vectors.h"

namespace rtf {

#if RTF_TILES

struct ByTiles {
  static constexpr int64_t kRowsOfPiece = 2 * kTileRows, kDepthOfPiece = 320;
  static constexpr int64_t kColumnsOfPiece = 640;  // 1.2 MB of packed b
  static constexpr int64_t kStepOfRows = kRowsOfPiece, kStepOfColumns = 2 * kLanes;
  static_assert(kDepthOfPiece % kTileDepth == 0 && kColumnsOfPiece % kStepOfColumns == 0, "pieces are whole tiles");

  // Maximum sizes of the pieces of a product, in whole tiles.
  static int64_t depth_of_piece(const RtfProduct& shape) {
    return std::min(kDepthOfPiece, round_up(shape.depth, kTileDepth));
  }
  static int64_t columns_of_piece(const RtfProduct& shape) {
    return std::min(kColumnsOfPiece, round_up(shape.columns, kStepOfColumns));
  }

  static int64_t rows_size(const RtfProduct& shape) { return kRowsOfPiece * depth_of_piece(shape) * kSplit; }

  // The packed pieces of both factors; of the rows, the current one and the next one.
  struct Memory {
    Bfloat16 *columns, *rows;

    Memory(Arena& arena, const RtfProduct& shape)
        : columns(take(arena, columns_of_piece(shape) * depth_of_piece(shape) * kSplit)),
          rows(take(arena, 2 * rows_size(shape))) {}

    static Bfloat16* take(Arena& arena, int64_t n) { return reinterpret_cast<Bfloat16*>(arena.take((n + 1) / 2)); }
  };

  ByTiles(const RtfProduct& shape, const Factor& a, const Factor& b, float* y, const Memory& memory)
      : shape(shape), a(a), b(b), y(y), packed(memory.columns), rows(memory.rows) {}

  // An even number of tiles, ordered as rows in memory.
  void pack_columns(Range depth, Range columns) const {
    const int64_t blocks = tile_blocks(depth.size());
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t k = depth.begin + block * kTileDepth;
      Bfloat16* to = packed + block * kSplitTile;
      for (int64_t at = columns.begin; at < columns.begin + round_up(columns.size(), 2 * kLanes); at += kLanes) {
        const int n = count_of(columns.end - at);
        const float* from = n > 0 ? b.at(k, at) : b.data;
        if (b.transposed())
          pairs_along(from, b.column_step, depth.end - k, n).transpose().store(to);
        else
          pairs_across(from, b.row_step, depth.end - k, n).store(to);
        to += blocks * kSplitTile;
      }
    }
  }

  static int count_of(int64_t rest) { return static_cast<int>(std::max<int64_t>(0, std::min(kTileRows, rest))); }

  // Packs the rows of a piece, tile by tile, while the tile unit multiplies those of the previous piece.
  struct NextRows {
    const ByTiles& form;
    Range depth, piece;
    Bfloat16* to;
    int64_t at = 0;

    int64_t tiles() const { return piece.size() > 0 ? 2 * tile_blocks(depth.size()) : 0; }

    void pack_all() {
      while (at < tiles()) pack_one();
    }

    __attribute__((noinline)) void pack_one() {
      const int64_t blocks = tile_blocks(depth.size());
      const int64_t row = piece.begin + at / blocks * kTileRows, k = depth.begin + at % blocks * kTileDepth;
      const int n = count_of(piece.end - row);
      const Factor& a = form.a;
      const float* from = n > 0 ? a.at(row, k) : a.data;
      Bfloat16* tile = to + at++ * kSplitTile;
      if (a.transposed())
        pairs_across(from, a.column_step, depth.end - k, n).transpose().store(tile);
      else
        pairs_along(from, a.row_step, depth.end - k, n).store(tile);
    }
  };

  void multiply(Range depth, Range columns, Range some, const float* bias) const {
    const TileUnit unit;
    const int64_t blocks = tile_blocks(depth.size()), pairs = (columns.size() + 2 * kLanes - 1) / (2 * kLanes);
    const int64_t pauses = kPauses * blocks * pairs;
    int side = 0;
    const auto rows_from = [&](int64_t begin) {
      return NextRows{*this, depth, {begin, std::min(some.end, begin + kRowsOfPiece)}, rows + side * rows_size(shape)};
    };
    rows_from(some.begin).pack_all();
    for_pieces(some, kRowsOfPiece, [&](Range piece) {
      const Bfloat16* x = rows + side * rows_size(shape);
      side = 1 - side;
      NextRows next = rows_from(piece.end);
      int64_t due = 0;
      const auto meanwhile = [&]() __attribute__((always_inline)) {
        for (due += next.tiles(); due >= pauses; due -= pauses) next.pack_one();
      };
      TileUnit::finish_writing(x);
      const Bfloat16* w = packed;
      for_pieces(columns, 2 * kLanes, [&](Range pair) {
        const bool whole = piece.size() == kRowsOfPiece && pair.size() == 2 * kLanes;
        const auto add = [&]() __attribute__((always_inline)) { multiply_2x2(x, w, blocks, meanwhile); };
        if (whole)
          add_whole(depth, pair, piece, bias, add);
        else
          add_to_edge(depth, pair, piece, bias, add);
        w += 2 * blocks * kSplitTile;
      });
      next.pack_all();
    });
  }

  static Sums2x2 sums_at(float* at, int64_t step) {
    return {at, at + kLanes, at + kTileRows * step, at + kTileRows * step + kLanes,
            step * static_cast<int64_t>(sizeof(float))};
  }

  // The sums are those in y.
  template <typename Add>
  void add_whole(Range depth, Range pair, Range piece, const float* bias, const Add& add) const {
    const Sums2x2 sums = sums_at(y + piece.begin * shape.columns + pair.begin, shape.columns);
    if (depth.begin > 0) {
      load_sums(sums);
    } else if (bias) {  // the same for each row
      float* start = const_cast<float*>(bias + pair.begin);
      load_sums({start, start + kLanes, start, start + kLanes, 0});
    } else {
      zero_sums();
    }
    add();
    store_sums(sums);
  }

  // Some of the tiles are beyond y.
  template <typename Add>
  void add_to_edge(Range depth, Range pair, Range piece, const float* bias, const Add& add) const {
    alignas(64) float edge[4 * kSums] = {};
    const auto for_rows = [&](const auto& function) {
      for (int64_t row = piece.begin; row < piece.end; ++row)
        function(y + row * shape.columns + pair.begin, edge + (row - piece.begin) * 2 * kLanes);
    };
    for_rows([&](const float* in_y, float* in_edge) {
      if (depth.begin > 0)
        std::copy(in_y, in_y + pair.size(), in_edge);
      else
        start_sums(bias, pair, in_edge);
    });
    const Sums2x2 sums = sums_at(edge, 2 * kLanes);
    TileUnit::finish_writing(edge);
    load_sums(sums);
    add();
    store_sums(sums);
    for_rows([&](float* in_y, const float* in_edge) { std::copy(in_edge, in_edge + pair.size(), in_y); });
  }

  const RtfProduct& shape;
  const Factor &a, &b;
  float* y;
  Bfloat16 *packed, *rows;
};

#else

using ByTiles = ByVectors;

#endif

}  // namespace rtf
