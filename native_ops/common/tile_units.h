// What multiplies packed factors (tile_packing.h): 32 rows times 32 columns, two tiles each.
//
// A Unit has: kParts, the parts of a number; Ready, which exists while it is used; kRounds and kPauses: meanwhile() is
// called kPauses + kRounds * (blocks of the depth) times per call of add(); finish_writing(), before it reads memory.
#pragma once

#include "block_product.h"
#include "tile_packing.h"
#include "tile_product.h"

namespace rtf {

// Sums of 32 x 32: rows that are `step` floats apart; with step 0 they all begin with the same 32 numbers.
struct SumRows {
  float* data;
  int64_t step;

  SumRows from(int64_t row) const { return {data ? data + row * step : nullptr, step}; }
};

// Of 32 rows, 32 columns and the depth, what has to be computed; the rest of the factors is packed as 0.
struct Part {
  int64_t rows, columns, depth;
};

#if RTF_TILES

template <int kPartsOfNumber>
struct TileProduct {
  using Ready = TileUnit;
  static constexpr int kParts = kPartsOfNumber;
  static constexpr int64_t kDepthOfPiece = kParts == 1 ? 512 : 320;  // 1.2 MB of packed columns, or half of it
  static constexpr int64_t kRounds = kParts == 1 ? 1 : rtf::kPauses, kPauses = 0;

  static void finish_writing(const void* memory) { TileUnit::finish_writing(memory); }

  // to = start + x * w; without data, start is 0. The second 16 columns of w are w_step numbers after the first ones:
  // it may be packed for a larger depth.
  template <typename Meanwhile>
  static inline __attribute__((always_inline)) void add(const Bfloat16* x, const Bfloat16* w, int64_t w_step,
                                                        int64_t blocks, const SumRows& start, const SumRows& to,
                                                        const Meanwhile& meanwhile) {
    if (start.data)
      load_sums(tiles_of(start));
    else
      zero_sums();
    multiply_2x2<kParts>(x, w, w_step, blocks, meanwhile);
    store_sums(tiles_of(to));
  }

  // All of it: tiles take as long if they are not full.
  static void add_part(const Bfloat16* x, const Bfloat16* w, int64_t w_step, const Part& part, const SumRows& start,
                       const SumRows& to) {
    add(x, w, w_step, tile_blocks(part.depth), start, to, [] {});
  }

 private:
  static Sums2x2 tiles_of(const SumRows& rows) {
    float* const lower = rows.data + kTileRows * rows.step;
    return {rows.data, rows.data + kLanes, lower, lower + kLanes, rows.step * static_cast<int64_t>(sizeof(float))};
  }
};

#endif

#if RTF_PAIRS

// By vectors: the sums of kRows rows x 32 columns stay in registers.
struct PairProduct {
  struct Ready {
    Ready() {}
  };
  static constexpr int kParts = 1;
  static constexpr int64_t kDepthOfPiece = 2048, kRows = 8;
  static constexpr int64_t kRounds = 0, kPauses = 2 * kTileRows / kRows;

  static void finish_writing(const void*) {}

  template <typename Meanwhile>
  static inline __attribute__((always_inline)) void add(const Bfloat16* x, const Bfloat16* w, int64_t w_step,
                                                        int64_t blocks, const SumRows& start, const SumRows& to,
                                                        const Meanwhile& meanwhile) {
    for (int64_t row = 0; row < 2 * kTileRows; row += kRows) {
      add_rows<kRows, 2>(row_of(x, row, blocks), w, w_step, blocks * kTileDepth, start.from(row), to.from(row));
      meanwhile();
    }
  }

  static void add_part(const Bfloat16* x, const Bfloat16* w, int64_t w_step, const Part& part, const SumRows& start,
                       const SumRows& to) {
    const int64_t blocks = tile_blocks(part.depth);
    with_constant<2>((part.columns + kLanes - 1) / kLanes, [&](auto vectors) {
      for (int64_t row = 0; row < part.rows; row += kRows) {
        const Bfloat16* rows = row_of(x, row, blocks);
        if (part.rows - row > kRows / 2)
          add_rows<kRows, vectors>(rows, w, w_step, part.depth, start.from(row), to.from(row));
        else
          add_rows<kRows / 2, vectors>(rows, w, w_step, part.depth, start.from(row), to.from(row));
      }
    });
  }

 private:
  static const Bfloat16* row_of(const Bfloat16* x, int64_t row, int64_t blocks) {
    return x + row / kTileRows * blocks * kTile + row % kTileRows * kTileDepth;
  }

  template <int kCount, int kWidth>
  static __attribute__((noinline)) void add_rows(const Bfloat16* x, const Bfloat16* w, int64_t w_step, int64_t depth,
                                                 SumRows start, SumRows to) {
    __m512 sums[kCount][kWidth];
#pragma GCC unroll 8
    for (int row = 0; row < kCount; ++row)
#pragma GCC unroll 2
      for (int v = 0; v < kWidth; ++v) {
        prefetch_to_write(to.data + row * to.step + v * kLanes);
        sums[row][v] = start.data ? _mm512_loadu_ps(start.data + row * start.step + v * kLanes) : _mm512_setzero_ps();
      }
    for (; depth > 0; depth -= kTileDepth, x += kTile, w += kTile) {
      const int64_t pairs = (std::min(depth, kTileDepth) + 1) / 2;
#pragma GCC unroll 4
      for (int64_t pair = 0; pair < pairs; ++pair) {
        __m512bh columns[kWidth];
#pragma GCC unroll 2
        for (int v = 0; v < kWidth; ++v) columns[v] = (__m512bh)_mm512_loadu_si512(w + v * w_step + pair * kTileDepth);
#pragma GCC unroll 8
        for (int row = 0; row < kCount; ++row) {
          int32_t two;
          std::memcpy(&two, x + row * kTileDepth + 2 * pair, sizeof(two));
          const __m512bh factor = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 2
          for (int v = 0; v < kWidth; ++v) sums[row][v] = _mm512_dpbf16_ps(sums[row][v], factor, columns[v]);
        }
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kCount; ++row)
#pragma GCC unroll 2
      for (int v = 0; v < kWidth; ++v) _mm512_storeu_ps(to.data + row * to.step + v * kLanes, sums[row][v]);
  }
};

#endif

}  // namespace rtf
