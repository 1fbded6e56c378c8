// Products of bfloat16 numbers, or of floats that are split into them (common/tiles.h), by a unit for pairs along the
// depth. One factor passes the other, of which a piece stays in the second cache: the next panel of what passes is
// packed while the unit multiplies the current one, so that it is read from memory meanwhile.
#pragma once

#include "../common/tile_units.h"
#include "packed_panels.h"
#include "pieces.h"

namespace rtf {

#if RTF_PAIRS

template <typename Unit>
class ByPairs {
 public:
  static constexpr int64_t kStepOfRows = kPanelLines, kStepOfColumns = kPanelLines;

 private:
  static constexpr int64_t kDepthOfPiece = Unit::kDepthOfPiece, kStaying = 640, kPassing = 2048;  // lines of a piece
  static constexpr int64_t kSize = Unit::kParts * kTile;                                          // of a packed tile
  static_assert(kDepthOfPiece % kTileDepth == 0 && kStaying % kPanelLines == 0, "pieces are whole tiles");

  // How a part of the result is computed; no part is larger than this one.
  struct Plan {
    bool rows_pass;  // else the columns
    bool at_once;  // what passes is packed in one go: lines across those of memory are read slowly one panel at a time
    bool all;      // all of what passes stays packed, else two panels
    int64_t staying_lines, passing_lines, depth;

    explicit Plan(const RtfProduct& part) {
      const bool rows_along = !part.transpose_a, columns_along = part.transpose_b;
      rows_pass = rows_along == columns_along ? part.rows >= part.columns : rows_along;
      const int64_t passing = rows_pass ? part.rows : part.columns, staying = rows_pass ? part.columns : part.rows;
      at_once = !(rows_pass ? rows_along : columns_along);
      all = at_once || staying > kStaying;
      staying_lines = std::min(kStaying, round_up(staying, kPanelLines));
      passing_lines = all ? std::min(kPassing, round_up(passing, kPanelLines)) : 2 * kPanelLines;
      depth = std::min(kDepthOfPiece, round_up(part.depth, kTileDepth));
    }
  };

 public:
  struct Memory {
    Plan plan;
    Bfloat16 *staying, *passing;

    Memory(Arena& arena, const RtfProduct& part)
        : plan(part), staying(take(arena, plan.staying_lines)), passing(take(arena, plan.passing_lines)) {}

   private:
    Bfloat16* take(Arena& arena, int64_t lines) const {
      return reinterpret_cast<Bfloat16*>(arena.take(lines * plan.depth * Unit::kParts / 2));
    }
  };

  ByPairs(const RtfProduct& shape, const Factor& a, const Factor& b, float* y, const Memory& memory)
      : shape_(shape), left_(left_lines(a)), right_(right_lines(b)), y_(y), memory_(memory), plan_(memory.plan) {}

  void run(Range rows, Range columns, const float* bias) const {
    const Range all_passing = plan_.rows_pass ? rows : columns, all_staying = plan_.rows_pass ? columns : rows;
    for_pieces(all_passing, plan_.all ? kPassing : all_passing.size(), [&](Range passing) {
      for_depth(shape_.depth, kDepthOfPiece, [&](Range depth) {
        bool packed = plan_.at_once;
        if (packed) panels(plan_.rows_pass, depth, passing, memory_.passing).pack_all();
        for_pieces(all_staying, kStaying, [&](Range staying) {
          panels(!plan_.rows_pass, depth, staying, memory_.staying).pack_all();
          pass(depth, staying, passing, packed, bias);
          packed = true;
        });
      });
    });
  }

 private:
  PackedPanels<Unit::kParts> panels(bool rows, Range depth, Range lines, Bfloat16* to) const {
    return {rows ? left_ : right_, depth, lines, to};
  }

  // The next panel of what passes is packed while the current one is multiplied, unless all are packed.
  void pass(Range depth, Range staying, Range passing, bool packed, const float* bias) const {
    const typename Unit::Ready ready;
    const int64_t blocks = tile_blocks(depth.size()), panel_size = 2 * blocks * kSize;
    const int64_t pauses = (Unit::kPauses + Unit::kRounds * blocks) * pieces_of(staying.size(), kPanelLines);
    const auto panel_from = [&](int64_t begin) {
      const int64_t index = (begin - passing.begin) / kPanelLines;
      return memory_.passing + (plan_.all ? index : index % 2) * panel_size;
    };
    const auto packing_from = [&](int64_t begin) {
      const Range lines{begin, packed ? begin : std::min(passing.end, begin + kPanelLines)};
      return panels(plan_.rows_pass, depth, lines, panel_from(begin));
    };
    packing_from(passing.begin).pack_all();
    Unit::finish_writing(memory_.passing);
    for_pieces(passing, kPanelLines, [&](Range lines) {
      auto next = packing_from(lines.end);
      const int64_t n_next = next.tiles();
      int64_t due = 0;
      const auto meanwhile = [&]() __attribute__((always_inline)) {
        for (due += n_next; due >= pauses; due -= pauses) next.pack_one();
      };
      const Bfloat16 *const panel = panel_from(lines.begin), *other = memory_.staying;
      for_pieces(staying, kPanelLines, [&](Range others) {
        if (plan_.rows_pass)
          add(panel, other, depth, lines, others, bias, meanwhile);
        else
          add(other, panel, depth, others, lines, bias, meanwhile);
        other += panel_size;
      });
      next.pack_all();
      Unit::finish_writing(memory_.passing);
    });
  }

  template <typename Meanwhile>
  inline __attribute__((always_inline)) void add(const Bfloat16* x, const Bfloat16* w, Range depth, Range rows,
                                                 Range columns, const float* bias, const Meanwhile& meanwhile) const {
    if (rows.size() == kPanelLines && columns.size() == kPanelLines)
      add_whole(x, w, depth, rows, columns, bias, meanwhile);
    else
      add_to_edge(x, w, depth, rows, columns, bias);
  }

  // From 16 packed columns to the next ones.
  static int64_t w_step(Range depth) { return tile_blocks(depth.size()) * kSize; }

  // The sums are those in y.
  template <typename Meanwhile>
  void add_whole(const Bfloat16* x, const Bfloat16* w, Range depth, Range rows, Range columns, const float* bias,
                 const Meanwhile& meanwhile) const {
    const SumRows sums{y_ + rows.begin * shape_.columns + columns.begin, shape_.columns};
    const SumRows first{bias ? const_cast<float*>(bias + columns.begin) : nullptr, 0};
    Unit::add(x, w, w_step(depth), tile_blocks(depth.size()), depth.begin > 0 ? sums : first, sums, meanwhile);
  }

  // Some of the tiles are beyond y.
  void add_to_edge(const Bfloat16* x, const Bfloat16* w, Range depth, Range rows, Range columns,
                   const float* bias) const {
    alignas(64) float edge[kPanelLines * kPanelLines] = {};
    const auto for_rows = [&](const auto& function) {
      for (int64_t row = rows.begin; row < rows.end; ++row)
        function(y_ + row * shape_.columns + columns.begin, edge + (row - rows.begin) * kPanelLines);
    };
    for_rows([&](float* in_y, float* in_edge) {
      if (depth.begin > 0)
        std::copy(in_y, in_y + columns.size(), in_edge);
      else
        start_sums(bias, columns, in_edge);
    });
    Unit::finish_writing(edge);
    const SumRows sums{edge, kPanelLines};
    Unit::add_part(x, w, w_step(depth), Part{rows.size(), columns.size(), depth.size()}, sums, sums);
    for_rows([&](float* in_y, const float* in_edge) { std::copy(in_edge, in_edge + columns.size(), in_y); });
  }

  const RtfProduct& shape_;
  const Lines left_, right_;
  float* const y_;
  const Memory& memory_;
  const Plan& plan_;
};

#endif

}  // namespace rtf
