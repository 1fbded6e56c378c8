// Products of bfloat16 numbers, or of floats that are split into them (common/tiles.h), by a unit for pairs along the
// depth: the rows of a piece are packed while it multiplies those of the previous one.
#pragma once

#include "../common/tile_units.h"
#include "pieces.h"

namespace rtf {

#if RTF_PAIRS

template <typename Unit>
struct ByPairs {
  static constexpr int64_t kRowsOfPiece = 2 * kTileRows, kDepthOfPiece = Unit::kDepthOfPiece;
  static constexpr int64_t kColumnsOfPiece = 640;
  static constexpr int64_t kStepOfRows = kRowsOfPiece, kStepOfColumns = 2 * kLanes;
  static constexpr int64_t kSize = Unit::kParts * kTile;  // of a packed tile
  static_assert(kDepthOfPiece % kTileDepth == 0 && kColumnsOfPiece % kStepOfColumns == 0, "pieces are whole tiles");

  // Maximum sizes of the pieces of a product, in whole tiles.
  static int64_t depth_of_piece(const RtfProduct& shape) {
    return std::min(kDepthOfPiece, round_up(shape.depth, kTileDepth));
  }
  static int64_t columns_of_piece(const RtfProduct& shape) {
    return std::min(kColumnsOfPiece, round_up(shape.columns, kStepOfColumns));
  }

  static int64_t rows_size(const RtfProduct& shape) { return kRowsOfPiece * depth_of_piece(shape) * Unit::kParts; }

  // The packed pieces of both factors; of the rows, the current one and the next one.
  struct Memory {
    Bfloat16 *columns, *rows;

    Memory(Arena& arena, const RtfProduct& shape)
        : columns(take(arena, columns_of_piece(shape) * depth_of_piece(shape) * Unit::kParts)),
          rows(take(arena, 2 * rows_size(shape))) {}

    static Bfloat16* take(Arena& arena, int64_t n) { return reinterpret_cast<Bfloat16*>(arena.take((n + 1) / 2)); }
  };

  ByPairs(const RtfProduct& shape, const Factor& a, const Factor& b, float* y, const Memory& memory)
      : shape(shape), a(a), b(b), y(y), packed(memory.columns), rows(memory.rows) {}

  // An even number of tiles, ordered as rows in memory.
  void pack_columns(Range depth, Range columns) const {
    const int64_t blocks = tile_blocks(depth.size());
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t k = depth.begin + block * kTileDepth;
      Bfloat16* to = packed + block * kSize;
      for (int64_t at = columns.begin; at < columns.begin + round_up(columns.size(), 2 * kLanes); at += kLanes) {
        const int n = count_of(columns.end - at);
        const float* from = n > 0 ? b.at(k, at) : b.data;
        if (b.transposed())
          pairs_along<Unit::kParts>(from, b.column_step, depth.end - k, n).transpose().store(to);
        else
          pairs_across<Unit::kParts>(from, b.row_step, depth.end - k, n).store(to);
        to += blocks * kSize;
      }
    }
  }

  // From 16 packed columns to the next ones.
  static int64_t w_step(Range depth) { return tile_blocks(depth.size()) * kSize; }

  static int count_of(int64_t rest) { return static_cast<int>(std::max<int64_t>(0, std::min(kTileRows, rest))); }

  // Packs the rows of a piece, tile by tile, while the unit multiplies those of the previous piece.
  struct NextRows {
    const ByPairs& form;
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
      Bfloat16* tile = to + at++ * kSize;
      if (a.transposed())
        pairs_across<Unit::kParts>(from, a.column_step, depth.end - k, n).transpose().store(tile);
      else
        pairs_along<Unit::kParts>(from, a.row_step, depth.end - k, n).store(tile);
    }
  };

  void multiply(Range depth, Range columns, Range some, const float* bias) const {
    const typename Unit::Ready ready;
    const int64_t blocks = tile_blocks(depth.size()), pairs = (columns.size() + 2 * kLanes - 1) / (2 * kLanes);
    const int64_t pauses = (Unit::kPauses + Unit::kRounds * blocks) * pairs;
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
      Unit::finish_writing(x);
      const Bfloat16* w = packed;
      for_pieces(columns, 2 * kLanes, [&](Range pair) {
        if (piece.size() == kRowsOfPiece && pair.size() == 2 * kLanes)
          add_whole(x, w, depth, pair, piece, bias, meanwhile);
        else
          add_to_edge(x, w, depth, pair, piece, bias, meanwhile);
        w += 2 * blocks * kSize;
      });
      next.pack_all();
    });
  }

  // The sums are those in y.
  template <typename Meanwhile>
  void add_whole(const Bfloat16* x, const Bfloat16* w, Range depth, Range pair, Range piece, const float* bias,
                 const Meanwhile& meanwhile) const {
    const SumRows sums{y + piece.begin * shape.columns + pair.begin, shape.columns};
    const SumRows first{bias ? const_cast<float*>(bias + pair.begin) : nullptr, 0};
    Unit::add(x, w, w_step(depth), tile_blocks(depth.size()), depth.begin > 0 ? sums : first, sums, meanwhile);
  }

  // Some of the tiles are beyond y.
  template <typename Meanwhile>
  void add_to_edge(const Bfloat16* x, const Bfloat16* w, Range depth, Range pair, Range piece, const float* bias,
                   const Meanwhile& meanwhile) const {
    alignas(64) float edge[2 * kTileRows * 2 * kLanes] = {};
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
    Unit::finish_writing(edge);
    const SumRows sums{edge, 2 * kLanes};
    Unit::add(x, w, w_step(depth), tile_blocks(depth.size()), sums, sums, meanwhile);
    for_rows([&](float* in_y, const float* in_edge) { std::copy(in_edge, in_edge + pair.size(), in_y); });
  }

  const RtfProduct& shape;
  const Factor &a, &b;
  float* y;
  Bfloat16 *packed, *rows;
};

#endif

}  // namespace rtf
