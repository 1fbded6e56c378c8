// Products by vectors, for CPUs without a tile unit and for few rows. Both factors are packed in the order in which
// they are read, also where they are stored transposed, as in Goto and van de Geijn, "Anatomy of High-Performance
// Matrix Multiplication" (ACM TOMS 34, 2008): a panel of columns stays in the first cache while all packed rows, which
// stay in the second one, pass it, and the sums of a block of kRows x kWidth stay in registers.
#pragma once

#include "../common/bfloat16.h"
#include "pieces.h"

namespace rtf {

// kRounded: the factors are rounded to bfloat16 while they are packed.
template <bool kRounded>
struct ByVectors {
#if defined(__AVX512F__)
  static constexpr int kRows = 12;  // 24 of 32 registers hold sums
#else
  static constexpr int kRows = 6;  // 12 of 16
#endif
  static constexpr int64_t kWidth = 2 * kLanes;
  static constexpr int64_t kDepthOfPiece = 256, kColumnsOfPiece = 1024, kRowsOfPiece = 120;
  static constexpr int64_t kStepOfRows = kRows, kStepOfColumns = kWidth;
  static_assert(kRowsOfPiece % kRows == 0 && kColumnsOfPiece % kWidth == 0, "pieces are whole blocks");

  static int64_t depth_of_piece(const RtfProduct& shape) { return std::min(kDepthOfPiece, shape.depth); }

  // The packed pieces of both factors.
  struct Memory {
    float *columns, *rows;

    Memory(Arena& arena, const RtfProduct& part)
        : columns(arena.take(std::min(kColumnsOfPiece, round_up(part.columns, kWidth)) * depth_of_piece(part))),
          rows(arena.take(std::min(kRowsOfPiece, round_up(part.rows, kRows)) * depth_of_piece(part))) {}
  };

  ByVectors(const RtfProduct& shape, const Factor& a, const Factor& b, float* y, const Memory& memory)
      : shape(shape), a(a), b(b), y(y), packed(memory.columns), rows(memory.rows) {}

  void run(Range some, Range columns, const float* bias) const {
    for_pieces(columns, kColumnsOfPiece, [&](Range some_columns) {
      for_depth(shape.depth, kDepthOfPiece, [&](Range depth) {
        pack_columns(depth, some_columns);
        multiply(depth, some_columns, some, bias);
      });
    });
  }

 private:
  // packed [panel][depth][kWidth], with zeros beyond the last column.
  void pack_columns(Range depth, Range columns) const {
    float* to = packed;
    for_pieces(columns, kWidth, [&](Range panel) {
      pack_panel<kWidth>(b.at(depth.begin, panel.begin), b.row_step, b.column_step, depth.size(), panel.size(), to);
      to += depth.size() * kWidth;
    });
  }

  // Some rows with the packed columns. The initial value of the sums is the bias, or what is in y.
  void multiply(Range depth, Range columns, Range some, const float* bias) const {
    for_pieces(some, kRowsOfPiece, [&](Range piece) {
      float* to = rows;
      for_pieces(piece, kRows, [&](Range few) {
        pack_panel<kRows>(a.at(few.begin, depth.begin), a.column_step, a.row_step, depth.size(), few.size(), to);
        to += depth.size() * kRows;
      });
      const float* w = packed;
      for_pieces(columns, kWidth, [&](Range panel) {
        const float* x = rows;
        for_pieces(piece, kRows, [&](Range few) {
          multiply_rows(x, w, depth, few, panel, bias);
          x += depth.size() * kRows;
        });
        w += depth.size() * kWidth;
      });
    });
  }

  // to[k][i] = from[k * step + i * lane_step] for i < n, 0 for n <= i < kSize.
  template <int64_t kSize>
  static void pack_panel(const float* from, int64_t step, int64_t lane_step, int64_t depth, int64_t n, float* to) {
    constexpr int64_t kLine = 16;  // floats of a cache line
    if (lane_step == 1 && n == kSize) {
      for (int64_t k = 0; k < depth; ++k) std::copy(from + k * step, from + k * step + kSize, to + k * kSize);
    } else if (lane_step == 1) {
      for (int64_t k = 0; k < depth; ++k) {
        std::copy(from + k * step, from + k * step + n, to + k * kSize);
        std::fill(to + k * kSize + n, to + (k + 1) * kSize, 0.0f);
      }
    } else {
      for (int64_t begin = 0; begin < depth; begin += kLine) {
        const int64_t end = std::min(depth, begin + kLine);
        for (int64_t i = 0; i < n; ++i)
          for (int64_t k = begin; k < end; ++k) to[k * kSize + i] = from[k * step + i * lane_step];
        for (int64_t k = begin; k < end; ++k) std::fill(to + k * kSize + n, to + (k + 1) * kSize, 0.0f);
      }
    }
    if (!kRounded) return;
    for (int64_t i = 0; i < depth * kSize; ++i) to[i] = float_of(static_cast<uint32_t>(rounded(to[i])) << 16);
  }

  void multiply_rows(const float* x, const float* w, Range depth, Range few, Range panel, const float* bias) const {
    float* const at = y + few.begin * shape.columns + panel.begin;
    for (int64_t row = 0; row < few.size(); ++row) prefetch_to_write(at + row * shape.columns);
    Vec sums[kRows][2];
    rtf::multiply_block<kRows, 2>(depth.size(), Strided{x, 1, kRows}, Columns{w, kWidth}, FromZero(), sums);
    const bool starts = depth.begin == 0;
    if (few.size() == kRows && panel.size() == kWidth) {
      const Vec none{}, first = starts && bias ? load(bias + panel.begin) : none;
      const Vec second = starts && bias ? load(bias + panel.begin + kLanes) : none;
#pragma GCC unroll 16
      for (int64_t row = 0; row < kRows; ++row) {
        float* to = at + row * shape.columns;
        store(to, sums[row][0] + (starts ? first : load(to)));
        store(to + kLanes, sums[row][1] + (starts ? second : load(to + kLanes)));
      }
      return;
    }
    alignas(64) float edge[kRows * kWidth];
    std::memcpy(edge, sums, sizeof(edge));
    for (int64_t row = 0; row < few.size(); ++row) {
      float* to = at + row * shape.columns;
      if (starts) start_sums(bias, panel, to);
      for (int64_t i = 0; i < panel.size(); ++i) to[i] += edge[row * kWidth + i];
    }
  }

  const RtfProduct& shape;
  const Factor &a, &b;
  float *y, *packed, *rows;
};

}  // namespace rtf
