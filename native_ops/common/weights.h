// The recurrent weights in the form that the product of a step reads: packed for vectors (packed_gemm.h), unpacked, or
// packed for the tile unit (tiles.h).
#pragma once

#include "packed_gemm.h"
#include "ragged.h"
#include "sequences.h"
#include "tile_packing.h"
#include "tile_product.h"

namespace rtf {

inline int64_t blocks_of(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// Whether the steps of a recurrence run on the tile unit: for the sizes at which it was measured to be faster than
// vectors, with one thread and with two (bench/lstm_kernel.cc). It takes 16 rows at once, best in pairs of blocks; a
// single block takes two thirds of the time of a pair; with few units, moving sums and states dominates the products.
// The answer must not depend on the number of threads, because the last bits of the results depend on it.
inline bool by_tiles(const RtfSequences& shape) {
  constexpr int64_t kRowsOfAllSteps = 256;  // minimum for split weights to pay off
  const int64_t blocks = blocks_of(shape.batch), thirds = blocks / 2 * 3 + blocks % 2 * 2;  // of the time of a pair
  const int64_t least_units = shape.batch >= 64 ? 96 : blocks == 3 ? 384 : 256;
  const bool filled = 13 * shape.batch >= 100 * thirds;  // 72 % of the rows
  return tiles_work() && filled && shape.units >= least_units && shape.frames * shape.batch >= kRowsOfAllSteps;
}

// Upper bound for the row blocks of a batch, however it is divided: n_shares <= N shares of ceil(N / n_shares) blocks
// each are less than 2 N blocks.
inline int64_t row_blocks(const RtfSequences& shape) { return 2 * blocks_of(shape.batch); }

// The blocks of the largest of n_shares.
inline int64_t blocks_of_share(const RtfSequences& shape, int64_t n_shares) {
  return blocks_of((shape.batch + n_shares - 1) / n_shares);
}

// With so few rows in total, as in a decoder that calls the op per frame, weights are read unpacked and only once.
inline bool few_rows_in_all(const RtfSequences& shape) { return shape.frames * shape.batch <= kMostPlainRows; }

// A batch is divided so that each share fills the tiles.
inline int64_t n_shares(const RtfSequences& shape, const RtfThreads& threads) {
  if (few_rows_in_all(shape)) return 1;
  const int64_t most = by_tiles(shape) ? blocks_of(shape.batch) : threads.n_threads;
  return std::min<int64_t>(threads.n_threads, most);
}

// Takes the rows of a product, parts as in tile_blocks; none without a tile unit. All that are used are written before
// they are read, but not the gaps between them.
inline TileRows take_rows(Arena& arena, const RtfSequences& shape, int64_t depth, int parts = 1) {
  if (!by_tiles(shape)) return {};
  const int64_t blocks = tile_blocks(depth, parts);
  const TileRows rows{reinterpret_cast<Bfloat16*>(arena.take(row_blocks(shape) * blocks * kSplitTile / 2)), blocks};
  rows.clear(row_blocks(shape) * kTileRows);
  return rows;
}

// A matrix [depth, columns]; see n_panels for parts.
template <int kParts>
class Weights {
 public:
  static constexpr int kTileWidth = kParts == 4 ? 4 : 2;  // tiles of columns in a panel

  // Takes the memory that any of the forms needs.
  static float* take(Arena& arena, const RtfSequences& shape, int64_t depth, int64_t columns, int parts_of_depth = 1) {
    if (!by_tiles(shape)) return arena.take(std::max(packed_size(depth, columns, kParts), kMostPlainRows * columns));
    return arena.take(tile_panels(columns) * kTileWidth * tile_blocks(depth, parts_of_depth) * kSplitTile / 2);
  }

  static Weights of(const RtfSequences& shape, const float* w, int64_t depth, int64_t columns, float* memory,
                    const RtfThreads& threads) {
    if (by_tiles(shape))
      return by_columns(depth, columns, 1, memory, threads,
                        [&](int64_t column, int n, Bfloat16* to) { pack_columns(w + column, columns, depth, n, to); });
    if (few_rows_in_all(shape) && has_whole_panels(columns))
      return Weights(plain_matrix(w, depth, columns, kParts), nullptr, memory);
    run_ranges(threads, n_panels(columns, kParts),
               [&](int64_t first, int64_t last) { pack(w, depth, columns, first, last, memory, kParts); });
    return Weights(packed_matrix(memory, depth, columns, kParts));
  }

  // The transpose of w [columns, depth], for the backward pass. The depth consists of parts.
  static Weights transposed(const RtfSequences& shape, const float* w, int64_t depth, int64_t columns,
                            int parts_of_depth, float* memory, const RtfThreads& threads) {
    static_assert(kParts == 1, "not needed so far");
    if (by_tiles(shape))
      return by_columns(depth, columns, parts_of_depth, memory, threads, [&](int64_t column, int n, Bfloat16* to) {
        pack_columns_transposed(w + column * depth, depth, depth, parts_of_depth, n, to);
      });
    run_ranges(threads, n_panels(columns),
               [&](int64_t first, int64_t last) { pack_transposed(w, depth, columns, first, last, memory); });
    return Weights(packed_matrix(memory, depth, columns));
  }

  bool tiled() const { return tiles_ != nullptr; }
  bool as_it_is() const { return sums_ != nullptr; }
  int64_t panels() const { return tiled() ? tile_panels(vectors_.columns) : vectors_.panels(); }

  // epilogue(panel, width, row, x(row) * panel as vectors) for the panels first .. last - 1 and all rows, where width()
  // is the number of vectors in a panel and tiles has the same rows as x. backward: see in_turn.
  template <typename Input, typename Epilogue>
  void multiply(const Input& x, const TileRows& tiles, int64_t n_rows, int64_t first, int64_t last, bool backward,
                const Epilogue& epilogue) const {
    if (tiled())
      return multiply_tiles<kTileWidth>(tiles, n_rows, tiles_, first, last, backward,
                                        [&](int64_t panel, int64_t row, const Vec* sums) {
                                          epilogue(panel, std::integral_constant<int, kTileWidth>(), row, sums);
                                        });
    if (as_it_is()) return multiply_as_it_is(x, n_rows, first, last, epilogue);
    in_turn(first, last, backward, [&](int64_t panel) {
      multiply_panel(
          x, n_rows, vectors_, panel, [&](int64_t row, const Vec* sums) __attribute__((always_inline)) {
            epilogue(panel, std::integral_constant<int, kVectors>(), row, sums);
          });
    });
  }

  // function(panel, width) for panels that need no product.
  template <typename Function>
  void for_panels(int64_t first, int64_t last, const Function& function) const {
    for (int64_t panel = first; panel < last; ++panel) {
      if (tiled())
        function(panel, std::integral_constant<int, kTileWidth>());
      else
        function(panel, std::integral_constant<int, kVectors>());
    }
  }

 private:
  explicit Weights(const Matrix& vectors, const Bfloat16* tiles = nullptr, float* sums = nullptr)
      : vectors_(vectors), tiles_(tiles), sums_(sums) {}

  // The product with the matrix as it lies in memory: sums have the order of its columns.
  template <typename Input, typename Epilogue>
  void multiply_as_it_is(const Input& x, int64_t n_rows, int64_t first, int64_t last, const Epilogue& epilogue) const {
    const int64_t width = vectors_.columns / kParts, slice = kPanel / kParts;
    const float* rows[kMostPlainRows];
    float* sums[kMostPlainRows];
    for (int64_t row = 0; row < n_rows; ++row) {
      rows[row] = x(row);
      sums[row] = sums_ + row * vectors_.columns;
    }
    for (int part = 0; part < kParts; ++part) {
      const int64_t begin = part * width + first * slice, end = part * width + last * slice;
      with_constant<kMostPlainRows>(n_rows,
                                    [&](auto count) { multiply_plain<count>(rows, vectors_, begin, end, sums); });
    }
    for (int64_t panel = first; panel < last; ++panel)
      for (int64_t row = 0; row < n_rows; ++row) {
        Vec of_panel[kVectors];
        for (int v = 0; v < kVectors; ++v) of_panel[v] = load(sums[row] + panel * slice + vectors_.vectors[v]);
        epilogue(panel, std::integral_constant<int, kVectors>(), row, of_panel);
      }
  }

  static int64_t tile_panels(int64_t columns) {
    const int64_t slice = kTileWidth * kLanes / kParts;
    return (columns / kParts + slice - 1) / slice;
  }

  // pack(column, number of existing ones, memory) for each tile of columns: a panel has the same ones of all parts.
  template <typename Pack>
  static Weights by_columns(int64_t depth, int64_t columns, int parts_of_depth, float* memory,
                            const RtfThreads& threads, const Pack& pack) {
    Bfloat16* tiles = reinterpret_cast<Bfloat16*>(memory);
    const int64_t size = tile_blocks(depth, parts_of_depth) * kSplitTile, width = columns / kParts;
    constexpr int kOfPart = kTileWidth / kParts;
    run_ranges(threads, tile_panels(columns) * kTileWidth, [&](int64_t first, int64_t last) {
      for (int64_t tile = first; tile < last; ++tile) {
        const int64_t part = tile % kTileWidth / kOfPart, at = (tile / kTileWidth * kOfPart + tile % kOfPart) * kLanes;
        const int n = static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(kLanes, width - at)));
        pack(n > 0 ? part * width + at : 0, n, tiles + tile * size);
      }
    });
    return Weights(Matrix{nullptr, depth, columns, kParts, 0, 0, {}}, tiles);
  }

  Matrix vectors_;
  const Bfloat16* tiles_;
  float* sums_;  // the products of an unpacked matrix; else null
};

}  // namespace rtf
