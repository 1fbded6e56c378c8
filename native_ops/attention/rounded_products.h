// Products of a block with factors that are rounded to bfloat16 while they are packed, by a unit for pairs along the
// depth (common/tile_units.h).
#pragma once

#include "../common/tile_units.h"
#include "blocks.h"

namespace rtf {

#if RTF_PAIRS

template <typename Unit>
class RoundedProducts {
  static constexpr int64_t kStep = 2 * kTileRows;
  static_assert(Unit::kParts == 1 && kStep == kTileDepth, "sizes in multiples of kStep are whole tiles in all factors");

 public:
  static constexpr BlockSizes kSizes{kStep, kStep, kStep, 2 * kStep};

  using Ready = typename Unit::Ready;

  struct AsColumns {
    AsColumns(Arena& arena, int64_t size, int64_t most)
        : size(size), step(tile_blocks(size) * kTile), tiles(take(arena, most, size)) {}

    void pack(const float* from, int64_t from_step, int64_t n) const {
      pack_along<true>(Block{from, from_step, n, size}, tiles);
    }

    int64_t size, step;  // from 16 columns to the next ones
    Bfloat16* tiles;
  };

  struct AsRows {
    AsRows(Arena& arena, int64_t size, int64_t most) : size(size), tiles(take(arena, size, most)) {}

    void pack(const float* from, int64_t from_step, int64_t n) {
      step = tile_blocks(n) * kTile;
      pack_across<false>(Block{from, from_step, n, size}, tiles);
    }

    int64_t size, step = 0;
    Bfloat16* tiles;
  };

  // Stored as [size, n]: a, which has many more columns than b, is then packed without being transposed.
  struct Sums {
    Sums(Arena& arena, int64_t size, int64_t most)
        : size(size), width(round_up(most, kStep)), data(arena.take(round_up(size, kStep) * width)) {}

    void clear() const { std::fill_n(data, round_up(size, kStep) * width, 0.0f); }

    void write(int64_t count, float* to, int64_t step) const {
      for (int64_t t = 0; t < count; t += kTileRows)
        for (int64_t i = 0; i < size; i += kTileRows) {
          __m512i rows[kTileRows];
          for (int64_t row = 0; row < kTileRows; ++row) rows[row] = _mm512_loadu_si512(data + (i + row) * width + t);
          transpose(rows);
          const int64_t n = std::min(kTileRows, size - i);
          const __mmask16 some = static_cast<__mmask16>((1u << n) - 1);
          for (int64_t row = 0; row < std::min(kTileRows, count - t); ++row)
            _mm512_mask_storeu_epi32(to + (t + row) * step + i, some, rows[row]);
        }
    }

    int64_t size, width;
    float* data;
  };

  RoundedProducts(Arena& arena, const Sizes& sizes)
      : left_(take(arena, sizes.block, std::max({sizes.keys, sizes.key, sizes.value, sizes.distances}))),
        right_(take(arena, sizes.block, std::max(sizes.keys, sizes.distances))) {}

  static Vec factor(Vec x) { return reinterpret_cast<Vec>(widened(Split<1>(x).parts[0])); }

  void multiply(const Block& left, const AsColumns& right, int64_t n, float* to, int64_t step) const {
    pack_along<false>(left, left_);
    multiply_packed(left.rows, left.columns, right.tiles, right.step, n, to, step, false);
  }

  void multiply(const Block& left, const AsRows& right, float* to, int64_t step, bool add) const {
    pack_along<false>(left, left_);
    multiply_packed(left.rows, left.columns, right.tiles, right.step, right.size, to, step, add);
  }

  void add(const Block& a, const Block& b, const Sums& sums) const {
    pack_across<true>(b, left_);
    pack_across<false>(a, right_);
    multiply_packed(b.columns, b.rows, right_, tile_blocks(a.rows) * kTile, a.columns, sums.data, sums.width, true);
  }

 private:
  static Bfloat16* take(Arena& arena, int64_t n, int64_t depth) {
    return reinterpret_cast<Bfloat16*>(arena.take(round_up(n, kStep) * round_up(depth, kStep) / 2));
  }

  static int count_of(int64_t rest) { return static_cast<int>(std::max<int64_t>(0, std::min(kTileRows, rest))); }

  // The rows of x as those of a left factor, or as the columns of a right one.
  template <bool kColumns>
  static void pack_along(const Block& x, Bfloat16* to) {
    for (int64_t row = 0; row < round_up(x.rows, kStep); row += kTileRows)
      for (int64_t k = 0; k < x.columns; k += kTileDepth, to += kTile) {
        auto pairs = pairs_along<1>(x.data + row * x.step + k, x.step, x.columns - k, count_of(x.rows - row));
        (kColumns ? pairs.transpose() : pairs).store(to);
      }
  }

  // The columns of x as those of a right factor, or as the rows of a left one.
  template <bool kRows>
  static void pack_across(const Block& x, Bfloat16* to) {
    for (int64_t column = 0; column < round_up(x.columns, kStep); column += kTileRows)
      for (int64_t k = 0; k < x.rows; k += kTileDepth, to += kTile) {
        auto pairs = pairs_across<1>(x.data + k * x.step + column, x.step, x.rows - k, count_of(x.columns - column));
        (kRows ? pairs.transpose() : pairs).store(to);
      }
  }

  // to = or += left_ x the first columns of tiles that are w_step apart
  void multiply_packed(int64_t rows, int64_t depth, const Bfloat16* w, int64_t w_step, int64_t columns, float* to,
                       int64_t step, bool add) const {
    const int64_t blocks = tile_blocks(depth);
    Unit::finish_writing(left_);
    for (int64_t column = 0; column < columns; column += kStep, w += kStep / kTileRows * w_step)
      for (int64_t row = 0; row < rows; row += kStep) {
        const SumRows sums{to + row * step + column, step};
        const Part part{std::min(kStep, rows - row), std::min(kStep, columns - column), depth};
        Unit::add_part(left_ + row / kTileRows * blocks * kTile, w, w_step, part, add ? sums : SumRows{nullptr, 0},
                       sums);
      }
  }

  Bfloat16 *left_, *right_;
};

#endif

}  // namespace rtf
