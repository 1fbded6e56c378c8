// The rows of a product in the form in which it reads them: split for the tile unit (tiles.h), or rounded to bfloat16.
#pragma once

#include <cstring>

#include "tiles.h"

namespace rtf {

// Rows of bfloat16 numbers, each of the same width. Without memory, writes are ignored.
struct RoundedRows {
  Bfloat16* data = nullptr;
  int64_t width = 0;

  RoundedRows from_row(int64_t row) const { return data ? RoundedRows{data + row * width, width} : RoundedRows{}; }

  void clear(int64_t n_rows) const {
    if (data) std::memset(data, 0, n_rows * width * sizeof(Bfloat16));
  }

  // As TileRows::put.
  template <bool kWhole>
  void put([[maybe_unused]] int64_t row, [[maybe_unused]] int64_t k, [[maybe_unused]] Vec x,
           [[maybe_unused]] int n) const {
#if RTF_PAIRS
    if (!data) return;
    if (!kWhole) x = reinterpret_cast<Vec>(_mm512_maskz_mov_ps((1u << n) - 1, reinterpret_cast<__m512>(x)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(data + row * width + k), Split<1>(x).parts[0]);
#endif
  }
};

// In one of these forms, or in none: then the product reads floats where they are.
struct FactorRows {
  TileRows split;
  RoundedRows rounded;

  explicit operator bool() const { return split || rounded.data; }

  // From the index-th 16 rows on.
  FactorRows from_block(int64_t index) const { return {split.from_block(index), rounded.from_row(index * kTileRows)}; }

  // The numbers k .. k + n - 1 of a row, k a multiple of kLanes; padded with zeros to the next multiple.
  template <bool kWhole>
  void put(int64_t row, int64_t k, Vec x, int n) const {
    split.put<kWhole>(row, k, x, n);
    rounded.put<kWhole>(row, k, x, n);
  }

  // All n numbers of a row.
  void put_row(int64_t row, const float* x, int64_t n) const {
    if (!*this) return;
    by_vectors(n, [&](int64_t k, auto whole, int lanes) {
      constexpr bool kWhole = decltype(whole)::value;
      put<kWhole>(row, k, load_n<kWhole>(x + k, lanes), lanes);
    });
  }
};

}  // namespace rtf
