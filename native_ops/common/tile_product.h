// Products of packed matrices on the tile unit; see tiles.h.
#pragma once

#include "tiles.h"

namespace rtf {

// function(panel) for first .. last - 1. Odd steps run backward, so that the first panels are still in the cache.
template <typename Function>
inline void in_turn(int64_t first, int64_t last, bool backward, const Function& function) {
  for (int64_t index = 0; index < last - first; ++index) function(backward ? last - 1 - index : first + index);
}

#if RTF_TILES

// While it exists, this thread's tiles are configured as 16 rows of 64 bytes.
class TileUnit {
 public:
  TileUnit() {
    struct alignas(64) {
      uint8_t palette, start_row, reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    } layout = {};
    layout.palette = 1;
    for (int tile = 0; tile < 8; ++tile) layout.row_bytes[tile] = 64, layout.rows[tile] = kTileRows;
    finish_writing(&layout);
    _tile_loadconfig(&layout);
  }
  ~TileUnit() { _tile_release(); }
  TileUnit(const TileUnit&) = delete;
  TileUnit& operator=(const TileUnit&) = delete;

  // GCC does not know that tile instructions read memory.
  static void finish_writing(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }
};

// The sums of some tiles, whose rows are finished while the next ones are computed: the tile unit leaves the vector
// unit idle.
template <int kWidth, typename Epilogue>
class Finished {
 public:
  Finished(const Epilogue& epilogue) : epilogue_(epilogue) {}

  // sums: kWidth tiles per block of 16 rows, for rows first .. last - 1
  void begin(const float* sums, int64_t panel, int64_t first, int64_t last) {
    sums_ = sums, panel_ = panel, first_ = at_ = first, last_ = last;
  }

  int64_t rows() const { return last_ - at_; }

  void finish() {
    while (at_ < last_) finish_one();
  }

  // Not inlined: it is called in each round of a product.
  __attribute__((noinline)) void finish_one() {
    const int64_t row = at_ - first_;
    const float* from = sums_ + (row / kTileRows * kWidth * kTileRows + row % kTileRows) * kLanes;
    Vec sums[kWidth];
    for (int v = 0; v < kWidth; ++v) sums[v] = load(from + v * kTileRows * kLanes);
    epilogue_(panel_, at_++, sums);
  }

 private:
  const Epilogue& epilogue_;
  const float* sums_ = nullptr;
  int64_t panel_ = 0, first_ = 0, at_ = 0, last_ = 0;
};

constexpr int kHigh = 0, kMiddle = kTile, kLow = 2 * kTile;  // offsets of the parts of a tile
constexpr int64_t kBytesOfRow = kTileDepth * sizeof(Bfloat16), kBytesOfSums = kLanes * sizeof(float);
constexpr int64_t kSums = kTileRows * kLanes;  // of a tile

// The sums of multiply_2x2: both blocks of rows in the first 16 columns, then in the second 16.
struct Sums2x2 {
  float *upper, *upper_right, *lower, *lower_right;
  int64_t row_bytes;  // from one row to the next
};

inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline __attribute__((always_inline)) void load_sums(const Sums2x2& sums) {
  _tile_loadd(0, sums.upper, sums.row_bytes);
  _tile_loadd(1, sums.upper_right, sums.row_bytes);
  _tile_loadd(2, sums.lower, sums.row_bytes);
  _tile_loadd(3, sums.lower_right, sums.row_bytes);
}

inline __attribute__((always_inline)) void store_sums(const Sums2x2& sums) {
  _tile_stored(0, sums.upper, sums.row_bytes);
  _tile_stored(1, sums.upper_right, sums.row_bytes);
  _tile_stored(2, sums.lower, sums.row_bytes);
  _tile_stored(3, sums.lower_right, sums.row_bytes);
}

// Adds two blocks of rows, adjacent in memory, times two tiles of columns, w_step numbers apart, to the sums in tiles 0
// - 3. A sum can take its next product only after about 50 cycles, in which the other three get theirs. meanwhile() is
// called kPauses times per block of the depth, or once for numbers of one part, so that the vector work in between fits
// into the CPU's reorder window.
constexpr int64_t kPauses = 3;

template <int kParts = kSplit, typename Meanwhile>
inline __attribute__((always_inline)) void multiply_2x2(const Bfloat16* x, const Bfloat16* w, int64_t w_step,
                                                        int64_t blocks, const Meanwhile& meanwhile) {
  static_assert(kParts == 1 || kParts == kSplit, "numbers are rounded, or split");
  constexpr int64_t kSize = kParts * kTile;
  const int64_t next = blocks * kSize;
  const auto load_rows = [&](int part) __attribute__((always_inline)) {
    _tile_loadd(4, x + part, kBytesOfRow);
    _tile_loadd(5, x + next + part, kBytesOfRow);
  };
  const auto load_columns = [&](int part) __attribute__((always_inline)) {
    _tile_loadd(6, w + part, kBytesOfRow);
    _tile_loadd(7, w + w_step + part, kBytesOfRow);
  };
  const auto add = []() __attribute__((always_inline)) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  };
  for (int64_t k = 0; k < blocks; ++k, x += kSize, w += kSize) {
    if constexpr (kParts == 1) {
      load_rows(kHigh), load_columns(kHigh), add();
      meanwhile();
      continue;
    }
    load_rows(kLow), load_columns(kHigh), add();
    load_rows(kMiddle), add();
    meanwhile();
    load_columns(kMiddle), add();
    load_rows(kHigh), add();
    meanwhile();
    load_columns(kHigh), add();
    load_columns(kLow), add();
    meanwhile();
  }
}

// One block of rows times two tiles of columns, or four: the same sums in the same order.
template <int kWidth, typename Meanwhile>
inline __attribute__((always_inline)) void multiply_1xn(const Bfloat16* x, const Bfloat16* w, int64_t blocks,
                                                        float* sums, const Meanwhile& meanwhile) {
  const int64_t column = blocks * kSplitTile;
  const auto load_rows = [&](int part) __attribute__((always_inline)) { _tile_loadd(4, x + part, kBytesOfRow); };
  const auto add = [&](int part) __attribute__((always_inline)) {
    _tile_loadd(6, w + part, kBytesOfRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + column + part, kBytesOfRow);
    _tile_dpbf16ps(1, 4, 7);
    if (kWidth < 4) return;
    _tile_loadd(5, w + 2 * column + part, kBytesOfRow);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(6, w + 3 * column + part, kBytesOfRow);
    _tile_dpbf16ps(3, 4, 6);
  };
  zero_sums();
  for (int64_t k = 0; k < blocks; ++k, x += kSplitTile, w += kSplitTile) {
    load_rows(kLow), add(kHigh);
    load_rows(kMiddle), add(kHigh);
    meanwhile();
    add(kMiddle);
    load_rows(kHigh), add(kMiddle);
    meanwhile();
    add(kHigh), add(kLow);
    meanwhile();
  }
  _tile_stored(0, sums, kBytesOfSums);
  _tile_stored(1, sums + kSums, kBytesOfSums);
  if (kWidth < 4) return;
  _tile_stored(2, sums + 2 * kSums, kBytesOfSums);
  _tile_stored(3, sums + 3 * kSums, kBytesOfSums);
}

// epilogue(panel, row, x[row] * panel as kWidth vectors) for the panels first .. last - 1 and the rows 0 .. n_rows - 1.
// A panel has kWidth tiles of columns, 2 or 4.
template <int kWidth, typename Epilogue>
void multiply_tiles(const TileRows& x, int64_t n_rows, const Bfloat16* w, int64_t first, int64_t last, bool backward,
                    const Epilogue& epilogue) {
  static_assert(kWidth == 2 || kWidth == 4, "what the tile unit has room for");
  if (n_rows == 0) return;
  constexpr int64_t kOfBlock = kWidth * kSums;
  alignas(64) float memory[2][2 * kOfBlock];
  const TileUnit unit;
  TileUnit::finish_writing(x.data);
  Finished<kWidth, Epilogue> before(epilogue);
  const int64_t column = x.block_size(), n_blocks = (n_rows + kTileRows - 1) / kTileRows;
  int side = 0;
  in_turn(first, last, backward, [&](int64_t panel) {
    const Bfloat16* w_panel = w + panel * kWidth * column;
    for (int64_t block = 0; block < n_blocks; block += 2, side = 1 - side) {
      const Bfloat16* rows = x.block(block);
      float* sums = memory[side];
      const bool two = block + 1 < n_blocks;
      const int64_t n_calls = kPauses * x.blocks * (two ? kWidth / 2 : 1);
      const int64_t n_before = before.rows();
      int64_t due = 0;
      const auto meanwhile = [&]() __attribute__((always_inline)) {
        for (due += n_before; due >= n_calls; due -= n_calls) before.finish_one();
      };
      if (two)
        for (int v = 0; v < kWidth; v += 2) {
          float *upper = sums + v * kSums, *lower = upper + kOfBlock;
          zero_sums();
          multiply_2x2(rows, w_panel + v * column, column, x.blocks, meanwhile);
          store_sums({upper, upper + kSums, lower, lower + kSums, kBytesOfSums});
        }
      else
        multiply_1xn<kWidth>(rows, w_panel, x.blocks, sums, meanwhile);
      before.finish();
      before.begin(sums, panel, block * kTileRows, std::min(n_rows, (block + 2) * kTileRows));
    }
  });
  before.finish();
}

#else

template <int kWidth, typename Epilogue>
void multiply_tiles(const TileRows&, int64_t, const Bfloat16*, int64_t, int64_t, bool, const Epilogue&) {}

#endif

}  // namespace rtf
