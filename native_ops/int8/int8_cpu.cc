// The rows are rounded first. Then a thread takes blocks of columns, or of rows where there are few columns; the sums
// of some rows and vectors of columns stay in registers, or in tiles, over the whole depth. Meanwhile the next block of
// columns is prefetched: a step of a search reads all matrices of a model, which the caches near a core do not hold.
#include <cmath>

#include "../common/arena.h"
#include "../common/block_product.h"
#include "../common/rows.h"
#include "dot.h"
#include "int8.h"
#include "tile_sums.h"

namespace rtf {
namespace {

constexpr int64_t kPanel = 16, kGroup = 4;  // columns and steps of the depth that are stored together
constexpr int64_t kLeastWork = 800'000;     // multiply-adds; below it, handing work to another thread takes longer
constexpr int64_t kRowsAtOnce = 192;        // of the rounded rows, which stay in the second cache
constexpr float kLeast = 0x1p-100f;         // 127 / largest is finite from here on
constexpr int32_t kInfinity = 0x7f800000;   // the bits of a float

int64_t groups_of(int64_t depth) { return (depth + kGroup - 1) / kGroup; }

// Rows that are rounded: int8 [rows, stride], of which each has [groups, 4] and zeros, and the scale and the sum of
// each row. A tile may have bytes behind the depth, and rows behind the last one, of which the sums are not used.
struct Rounded {
  int64_t depth, groups, stride;
  int8_t* numbers;
  float* scales;
  int32_t* sums;

  Rounded(int64_t rows, int64_t depth, void* memory)
      : depth(depth),
        groups(groups_of(depth)),
        stride(round_up(depth, kTileBytes)),
        numbers(static_cast<int8_t*>(memory)),
        scales(reinterpret_cast<float*>(numbers + (rows + kTileRows - 1) * stride)),
        sums(reinterpret_cast<int32_t*>(scales + rows)) {}

  static int64_t size(int64_t rows, int64_t depth) {
    return (rows + kTileRows - 1) * round_up(depth, kTileBytes) +
           rows * static_cast<int64_t>(sizeof(float) + sizeof(int32_t));
  }

  void round(const float* x, int64_t row) const {
    int8_t* to = numbers + row * stride;
    int32_t most = 0;  // as bits: NaN is above infinity, which is above the numbers
    for (int64_t k = 0; k < depth; ++k) {
      int32_t bits;
      std::memcpy(&bits, x + k, sizeof(bits));
      most = std::max(most, bits & 0x7fffffff);
    }
    float largest;
    std::memcpy(&largest, &most, sizeof(largest));
    std::fill(to + depth, to + stride, int8_t{0});
    sums[row] = 0;
    if (most >= kInfinity || largest < kLeast) {
      std::fill(to, to + depth, int8_t{0});
      scales[row] = most >= kInfinity ? NAN : 0.0f;
      return;
    }
    const float factor = 127.0f / largest;
    const int64_t n = depth;  // as an int8_t may be a part of anything, a store might change the member
    int32_t sum = 0;
    for (int64_t k = 0; k < n; ++k) {
      const int32_t number = static_cast<int32_t>(std::rint(x[k] * factor));  // unlike lrint, for a vector at once
      to[k] = static_cast<int8_t>(number);
      sum += number;
    }
    scales[row] = largest / 127.0f;
    sums[row] = sum;
  }

  int32_t group(int64_t row, int64_t k) const {
    int32_t four;
    std::memcpy(&four, numbers + row * stride + k * kGroup, sizeof(four));
    return four;
  }
};

// The bytes of the next block of columns, prefetched a few lines in each step of the depth while all rows pass a block.
class Ahead {
 public:
  // At most `size` bytes up to `end`, while `pieces` blocks of rows pass as many bytes.
  Ahead(const uint8_t* from, const uint8_t* end, int64_t size, int64_t pieces)
      : at_(from), end_(end - from < size ? end : from + size), lines_((kLinesOfStep + pieces - 1) / pieces) {}

  void prefetch() {
    for (int64_t line = 0; line < lines_ && at_ < end_; ++line, at_ += kLine) prefetch_to_read(at_);
  }

 private:
  static constexpr int64_t kLine = 64, kLinesOfStep = Dot::kVectors * Dot::kColumns * kGroup / kLine;

  const uint8_t *at_, *end_;
  int64_t lines_;
};

class Int8Product {
 public:
  Int8Product(int64_t columns, const Rounded& x, const uint8_t* w, const float* scales, const RtfAfterProduct& after,
              float* y)
      : columns_(columns), x_(x), w_(w), scales_(scales), after_(after), y_(y) {}

  int64_t vectors() const { return (columns_ + Dot::kColumns - 1) / Dot::kColumns; }
  int64_t blocks() const { return (vectors() + Dot::kVectors - 1) / Dot::kVectors; }

  // Blocks of columns first .. last - 1 of the rows begin .. end - 1.
  void run(int64_t first, int64_t last, int64_t begin, int64_t end) const {
#if RTF_INT8_TILES
    if (end - begin >= kLeastRowsOfTiles && tiles_work()) return run_tiles(first, last, begin, end);
#endif
    for (; begin < end; begin += kRowsAtOnce)
      for (int64_t block = first; block < last; ++block) {
        const int64_t vector = block * Dot::kVectors;
        with_constant<Dot::kVectors>(
            std::min<int64_t>(Dot::kVectors, vectors() - vector), [&](auto width) __attribute__((always_inline)) {
              rows_of<width>(vector * Dot::kColumns, begin, std::min(kRowsAtOnce, end - begin));
            });
      }
  }

 private:
  template <int kWidth>
  void rows_of(int64_t column, int64_t begin, int64_t n_rows) const {
    int64_t blocks = (n_rows + Dot::kMaxRows - 1) / Dot::kMaxRows;
    const int64_t next = std::min(column + kWidth * Dot::kColumns, columns_);
    Ahead ahead(at(next, 0), at(round_up(columns_, kPanel), 0), kWidth * Dot::kColumns * x_.groups * kGroup, blocks);
    for (int64_t at = 0, size; at < n_rows; at += size, --blocks) {  // of nearly equal size
      size = (n_rows - at + blocks - 1) / blocks;
      with_constant<Dot::kMaxRows>(
          size, [&](auto rows) __attribute__((always_inline)) { multiply<rows, kWidth>(column, begin + at, &ahead); });
    }
  }

  // Where four steps of the depth are for a column.
  const uint8_t* at(int64_t column, int64_t k) const {
    return w_ + (column / kPanel * x_.groups + k) * kPanel * kGroup + column % kPanel * kGroup;
  }

#if RTF_INT8_TILES
  // As run; of a tile that ends behind the rows of this thread, or behind the columns, the rest is not written.
  void run_tiles(int64_t first, int64_t last, int64_t begin, int64_t end) const {
    constexpr int64_t kPanels = Dot::kVectors * Dot::kColumns / kPanel;
    static_assert(kPanels == 4, "a block of columns");
    const int64_t panels = (columns_ + kPanel - 1) / kPanel;
    const TileUnit unit;
    TileUnit::finish_writing(x_.numbers);
    alignas(64) int32_t sums[4 * kSumsOfTile];
    for (; begin < end; begin += kRowsAtOnce) {
      const int64_t stop = std::min(begin + kRowsAtOnce, end);
      for (int64_t block = first; block < last; ++block) {
        const int64_t panel = block * kPanels, width = std::min(kPanels, panels - panel);
        int64_t row = begin;
        for (; stop - row > kTileRows; row += 2 * kTileRows)
          for (int64_t p = 0; p < width; p += 2)
            with_constant<2>(std::min<int64_t>(2, width - p), [&](auto n) {
              tile_sums<2, n>(factor(row), at((panel + p) * kPanel, 0), x_.groups, sums);
              write_tiles(row, std::min(stop, row + kTileRows), panel + p, n, sums);
              write_tiles(row + kTileRows, std::min(stop, row + 2 * kTileRows), panel + p, n, sums + 2 * kSumsOfTile);
            });
        if (row < stop)
          with_constant<4>(width, [&](auto n) {
            tile_sums<1, n>(factor(row), at(panel * kPanel, 0), x_.groups, sums);
            write_tiles(row, stop, panel, n, sums);
          });
      }
    }
  }

  TileFactor factor(int64_t row) const { return {x_.numbers + row * x_.stride, x_.stride}; }

  // sums [panels][16][16] of the rows first .. last - 1
  void write_tiles(int64_t first, int64_t last, int64_t panel, int panels, const int32_t* sums) const {
    for (int64_t row = first; row < last; ++row) {
      const uint32_t start = static_cast<uint32_t>(Dot::kStart) * static_cast<uint32_t>(x_.sums[row]);
      for (int p = 0; p < panels; ++p) {
        const int32_t* from = sums + p * kSumsOfTile + (row - first) * kPanel;
        int32_t values[kPanel];
        for (int i = 0; i < kPanel; ++i) values[i] = static_cast<int32_t>(static_cast<uint32_t>(from[i]) + start);
        scale(row, (panel + p) * kPanel, kPanel, values);
      }
    }
  }
#endif

  template <int kRows, int kWidth>
  void multiply(int64_t column, int64_t row, Ahead* ahead) const {
    typename Dot::Sums sums[kRows][kWidth];
    const uint8_t* from[kWidth];
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) {
      from[v] = at(column + v * Dot::kColumns, 0);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r)
        sums[r][v] = Dot::splat(
            static_cast<int32_t>(static_cast<uint32_t>(Dot::kStart) * static_cast<uint32_t>(x_.sums[row + r])));
    }
    for (int64_t k = 0; k < x_.groups; ++k) {
      ahead->prefetch();
      decltype(Dot::load(nullptr)) factors[kWidth];
#pragma GCC unroll 4
      for (int v = 0; v < kWidth; ++v) factors[v] = Dot::load(from[v] + k * kPanel * kGroup);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const int32_t four = x_.group(row + r, k);
#pragma GCC unroll 4
        for (int v = 0; v < kWidth; ++v) sums[r][v] = Dot::add(sums[r][v], factors[v], four);
      }
    }
    // By memory, since the code for all results at once would not leave the sums in registers.
    int32_t found[kRows][kWidth * Dot::kColumns];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kWidth; ++v) Dot::store(found[r] + v * Dot::kColumns, sums[r][v]);
#pragma GCC unroll 1
    for (int r = 0; r < kRows; ++r) scale(row + r, column, kWidth * Dot::kColumns, found[r]);
  }

  // Writes columns of a row, as far as they are in the matrix.
  void scale(int64_t row, int64_t column, int64_t width, const int32_t* sums) const {
    by_vectors(std::min(width, columns_ - column), [&](int64_t u, auto whole, int n) {
      scale_lanes<decltype(whole)::value>(row, column + u, sums + u, n);
    });
  }

  template <bool kWhole>
  void scale_lanes(int64_t row, int64_t column, const int32_t* sums, int n) const {
    IVec integers{};
    std::memcpy(&integers, sums, n * sizeof(int32_t));
    const Vec y =
        __builtin_convertvector(integers, Vec) * (splat(x_.scales[row]) * load_n<kWhole>(scales_ + column, n));
    store_n<kWhole>(y_ + row * columns_ + column, after_product<kWhole>(after_, y, row, column, columns_, n), n);
  }

  int64_t columns_;
  const Rounded& x_;
  const uint8_t* w_;
  const float* scales_;
  const RtfAfterProduct after_;
  float* y_;
};

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_int8_matrix_size(int64_t depth, int64_t columns) {
  return rtf::round_up(columns, rtf::kPanel) * rtf::groups_of(depth) * rtf::kGroup;
}

int64_t rtf_int8_scratch_size(int64_t rows, int64_t depth) { return rtf::Rounded::size(rows, depth); }

void rtf_int8_product_f32(int64_t rows, int64_t depth, int64_t columns, const float* x, const uint8_t* w,
                          const float* scales, const RtfAfterProduct* after, float* y, void* scratch,
                          const RtfThreads* threads) {
  const rtf::Rounded rounded(rows, depth, scratch);
  rtf::run_rows(*threads, rows, depth, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) rounded.round(x + row * depth, row);
  });
  const rtf::Int8Product product(columns, rounded, w, scales, *after, y);
  const int64_t blocks = product.blocks();
  if (rows * depth * columns < rtf::kLeastWork) return product.run(0, blocks, 0, rows);
  if (blocks >= threads->n_threads)
    return rtf::run_ranges(*threads, blocks, [&](int64_t first, int64_t last) { product.run(first, last, 0, rows); });
  rtf::run_ranges(*threads, rows, [&](int64_t begin, int64_t end) { product.run(0, blocks, begin, end); });
}
}
