// Products of rounded rows with matrices of small numbers. A group is the numbers of 4 bytes, steps of the depth: a row
// is its groups, and a matrix is stored as [ceil(columns / 16)][groups][16 columns][4 bytes], the layout of
// instructions that multiply groups and of tiles alike. The sums of some rows and columns stay in registers, or in
// tiles, over the whole depth.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "block_product.h"
#include "panel_tiles.h"
#include "rows.h"

namespace rtf {

constexpr int64_t kPanelColumns = 16, kGroupBytes = 4;
constexpr int64_t kLeastWork = 800'000;  // multiply-adds; below it, handing work to another thread takes longer
constexpr int64_t kRowsAtOnce = 192;     // of the rounded rows, which stay in the second cache

// The rounded rows: [rows, stride] bytes, of which each has its groups and zeros. A tile may have bytes behind the
// groups, and rows behind the last one, of which the sums are not used.
struct PanelRows {
  int64_t groups, stride;
  const uint8_t* bytes;

  static int64_t stride_of(int64_t row_bytes) { return round_up(row_bytes, kTileBytes); }
  static int64_t size(int64_t rows, int64_t row_bytes) { return (rows + kTileRows - 1) * stride_of(row_bytes); }

  int32_t group(int64_t row, int64_t k) const {
    int32_t four;
    std::memcpy(&four, bytes + row * stride + k * kGroupBytes, sizeof(four));
    return four;
  }
};

// The bytes of the next block of columns, prefetched a few lines in each step of the depth while all rows pass a block:
// a step of a search reads all matrices of a model, which the caches near a core do not hold.
class Ahead {
 public:
  // At most `size` bytes up to `end`, in steps in which a block passes `step` bytes, while `pieces` blocks of rows do.
  Ahead(const uint8_t* from, const uint8_t* end, int64_t size, int64_t step, int64_t pieces)
      : at_(from), end_(end - from < size ? end : from + size), lines_((step / kLine + pieces - 1) / pieces) {}

  void prefetch() {
    for (int64_t line = 0; line < lines_ && at_ < end_; ++line, at_ += kLine) prefetch_to_read(at_);
  }

 private:
  static constexpr int64_t kLine = 64;

  const uint8_t *at_, *end_;
  int64_t lines_;
};

// write(row, column, number of columns, their sums), of which the last columns may be behind the matrix. A Dot has:
// Sum, a number; Sums, a vector of them for kColumns; zero(), store(Sum*, Sums); load(bytes) and add(Sums, what is
// loaded, group of a row); kVectors and kMaxRows, of which the sums fit in the registers; kTiles.
template <typename Dot, typename Write>
class PanelProduct {
 public:
  PanelProduct(int64_t columns, const PanelRows& x, const uint8_t* w, const Write& write)
      : columns_(columns), x_(x), w_(w), write_(write) {}

  static constexpr int64_t kBlock = Dot::kVectors * Dot::kColumns;  // columns

  void run(int64_t rows, int64_t depth, const RtfThreads& threads) const {
    const int64_t n_blocks = (columns_ + kBlock - 1) / kBlock;
    const auto some = [&](int64_t first, int64_t last, int64_t begin, int64_t end) {
      run(first, last, begin, end, end - begin >= kLeastRowsOfTiles && tiles_work());
    };
    if (rows * depth * columns_ < kLeastWork) return some(0, n_blocks, 0, rows);
    if (n_blocks >= threads.n_threads)
      return run_ranges(threads, n_blocks, [&](int64_t first, int64_t last) { some(first, last, 0, rows); });
    run_ranges(threads, rows, [&](int64_t begin, int64_t end) { some(0, n_blocks, begin, end); });
  }

  // Blocks of columns first .. last - 1 of the rows begin .. end - 1, which write() gets as a whole. The last bits of
  // float sums on the tile unit differ from those by vectors.
  void run(int64_t first, int64_t last, int64_t begin, int64_t end, [[maybe_unused]] bool on_tiles) const {
#if RTF_TILES
    if constexpr (Dot::kTiles)
      if (on_tiles) return run_tiles(first, last, begin, end);
#endif
    const int64_t vectors = (columns_ + Dot::kColumns - 1) / Dot::kColumns;
    for (; begin < end; begin += kRowsAtOnce)
      for (int64_t block = first; block < last; ++block) {
        const int64_t vector = block * Dot::kVectors;
        with_constant<Dot::kVectors>(
            std::min<int64_t>(Dot::kVectors, vectors - vector), [&](auto width) __attribute__((always_inline)) {
              rows_of<width>(vector * Dot::kColumns, begin, std::min(kRowsAtOnce, end - begin));
            });
      }
  }

 private:
  using Sum = typename Dot::Sum;

  template <int kWidth>
  void rows_of(int64_t column, int64_t begin, int64_t n_rows) const {
    int64_t blocks = (n_rows + Dot::kMaxRows - 1) / Dot::kMaxRows;
    const int64_t next = std::min(column + kWidth * Dot::kColumns, columns_);
    Ahead ahead(at(next, 0), at(round_up(columns_, kPanelColumns), 0), kWidth * Dot::kColumns * x_.groups * kGroupBytes,
                kBlock * kGroupBytes, blocks);
    for (int64_t at = 0, size; at < n_rows; at += size, --blocks) {  // of nearly equal size
      size = (n_rows - at + blocks - 1) / blocks;
      with_constant<Dot::kMaxRows>(
          size, [&](auto rows) __attribute__((always_inline)) { multiply<rows, kWidth>(column, begin + at, &ahead); });
    }
  }

  // Where a group is for a column.
  const uint8_t* at(int64_t column, int64_t k) const {
    return w_ + (column / kPanelColumns * x_.groups + k) * kPanelColumns * kGroupBytes +
           column % kPanelColumns * kGroupBytes;
  }

  template <int kRows, int kWidth>
  void multiply(int64_t column, int64_t row, Ahead* ahead) const {
    typename Dot::Sums sums[kRows][kWidth];
    const uint8_t* from[kWidth];
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) {
      from[v] = at(column + v * Dot::kColumns, 0);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) sums[r][v] = Dot::zero();
    }
    for (int64_t k = 0; k < x_.groups; ++k) {
      ahead->prefetch();
      decltype(Dot::load(nullptr)) factors[kWidth];
#pragma GCC unroll 4
      for (int v = 0; v < kWidth; ++v) factors[v] = Dot::load(from[v] + k * kPanelColumns * kGroupBytes);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const int32_t group = x_.group(row + r, k);
#pragma GCC unroll 4
        for (int v = 0; v < kWidth; ++v) sums[r][v] = Dot::add(sums[r][v], factors[v], group);
      }
    }
    // By memory, since the code for all results at once would not leave the sums in registers.
    Sum found[kRows][kWidth * Dot::kColumns];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kWidth; ++v) Dot::store(found[r] + v * Dot::kColumns, sums[r][v]);
    write_rows(row, kRows, column, kWidth * Dot::kColumns, found[0]);
  }

  // Not inlined: what is written may be much code, for so many sizes of a block.
  __attribute__((noinline)) void write_rows(int64_t row, int n_rows, int64_t column, int width, const Sum* sums) const {
    for (int r = 0; r < n_rows; ++r) write_(row + r, column, width, sums + r * width);
  }

#if RTF_TILES
  void run_tiles(int64_t first, int64_t last, int64_t begin, int64_t end) const {
    constexpr int64_t kPanels = kBlock / kPanelColumns;
    static_assert(kPanels == 4, "a block of columns");
    const int64_t panels = (columns_ + kPanelColumns - 1) / kPanelColumns;
    const TileUnit unit;
    TileUnit::finish_writing(x_.bytes);
    alignas(64) Sum sums[2 * kPanels * kSumsOfTile];
    for (; begin < end; begin += kRowsAtOnce) {
      const int64_t stop = std::min(begin + kRowsAtOnce, end);
      for (int64_t block = first; block < last; ++block) {
        const int64_t panel = block * kPanels, width = std::min(kPanels, panels - panel);
        int64_t row = begin;
        for (; stop - row > kTileRows; row += 2 * kTileRows) {
          for (int64_t p = 0; p < width; p += 2)
            with_constant<2>(std::min<int64_t>(2, width - p), [&](auto n) {
              tile_sums<2, n>(factor(row), at((panel + p) * kPanelColumns, 0), x_.groups, sums + 2 * p * kSumsOfTile);
            });
          const int64_t between = row + kTileRows, end_of_rows = std::min(stop, between + kTileRows);
          write_tiles(row, between, panel, width, [&](int64_t p) { return sums + of_pair(p) * kSumsOfTile; });
          write_tiles(between, end_of_rows, panel, width,
                      [&](int64_t p) { return sums + (2 + of_pair(p)) * kSumsOfTile; });
        }
        if (row < stop) {
          with_constant<4>(
              width, [&](auto n) { tile_sums<1, n>(factor(row), at(panel * kPanelColumns, 0), x_.groups, sums); });
          write_tiles(row, stop, panel, width, [&](int64_t p) { return sums + p * kSumsOfTile; });
        }
      }
    }
  }

  TileFactor factor(int64_t row) const { return {x_.bytes + row * x_.stride, x_.stride}; }

  // The tile of the upper 16 of 32 rows: they are computed for two panels at a time, two tiles for each 16 rows.
  static int64_t of_pair(int64_t p) { return p / 2 * 4 + p % 2; }

  // tile(p): the sums [16][16] of the rows first .. last - 1 in panel number p of some adjacent ones
  template <typename Tile>
  void write_tiles(int64_t first, int64_t last, int64_t panel, int64_t panels, const Tile& tile) const {
    for (int64_t row = first; row < last; ++row) {
      alignas(64) Sum found[kBlock];
      for (int64_t p = 0; p < panels; ++p)
        std::memcpy(found + p * kPanelColumns, tile(p) + (row - first) * kPanelColumns, kPanelColumns * sizeof(Sum));
      write_rows(row, 1, panel * kPanelColumns, static_cast<int>(panels * kPanelColumns), found);
    }
  }
#endif

  int64_t columns_;
  const PanelRows& x_;
  const uint8_t* w_;
  const Write& write_;
};

template <typename Dot, typename Write>
void multiply_panels(int64_t rows, int64_t depth, int64_t columns, const PanelRows& x, const uint8_t* w,
                     const RtfThreads& threads, const Write& write) {
  PanelProduct<Dot, Write>(columns, x, w, write).run(rows, depth, threads);
}

}  // namespace rtf
