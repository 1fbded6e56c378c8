// What multiplies packed factors (tile_packing.h): 32 rows times 32 columns, two tiles each.
//
// A Unit has: kParts, the parts of a number; Ready, which exists while it is used; kRounds and kPauses: meanwhile() is
// called kPauses + kRounds * (blocks of the depth) times per call of add(); finish_writing(), before it reads memory.
#pragma once

#include "tile_packing.h"
#include "tile_product.h"

namespace rtf {

// Sums of 32 x 32: rows that are `step` floats apart; with step 0 they all begin with the same 32 numbers.
struct SumRows {
  float* data;
  int64_t step;
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
  static constexpr int64_t kDepthOfPiece = 1024, kRows = 8;
  static constexpr int64_t kRounds = 0, kPauses = 2 * kTileRows / kRows;

  static void finish_writing(const void*) {}

  template <typename Meanwhile>
  static inline __attribute__((always_inline)) void add(const Bfloat16* x, const Bfloat16* w, int64_t w_step,
                                                        int64_t blocks, const SumRows& start, const SumRows& to,
                                                        const Meanwhile& meanwhile) {
    for (int64_t row = 0; row < 2 * kTileRows; row += kRows) {
      const Bfloat16* rows = x + row / kTileRows * blocks * kTile + row % kTileRows * kTileDepth;
      add_rows(rows, w, w_step, blocks, start.data ? start.data + row * start.step : nullptr, start.step,
               to.data + row * to.step, to.step);
      meanwhile();
    }
  }

 private:
  static __attribute__((noinline)) void add_rows(const Bfloat16* x, const Bfloat16* w, int64_t w_step, int64_t blocks,
                                                 const float* start, int64_t start_step, float* to, int64_t to_step) {
    __m512 sums[kRows][2];
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      prefetch_to_write(to + row * to_step);
      prefetch_to_write(to + row * to_step + kLanes);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v)
        sums[row][v] = start ? _mm512_loadu_ps(start + row * start_step + v * kLanes) : _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < blocks; ++k, x += kTile, w += kTile) {
#pragma GCC unroll 4
      for (int64_t pair = 0; pair < kTileDepth / 2; ++pair) {
        const __m512bh left = (__m512bh)_mm512_loadu_si512(w + pair * kTileDepth);
        const __m512bh right = (__m512bh)_mm512_loadu_si512(w + w_step + pair * kTileDepth);
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
          int32_t two;
          std::memcpy(&two, x + row * kTileDepth + 2 * pair, sizeof(two));
          const __m512bh factor = (__m512bh)_mm512_set1_epi32(two);
          sums[row][0] = _mm512_dpbf16_ps(sums[row][0], factor, left);
          sums[row][1] = _mm512_dpbf16_ps(sums[row][1], factor, right);
        }
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) _mm512_storeu_ps(to + row * to_step + v * kLanes, sums[row][v]);
  }
};

#endif

}  // namespace rtf
