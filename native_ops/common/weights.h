// The recurrent weights in the form that the product of a step reads: packed for vectors (packed_gemm.h), unpacked,
// packed for the tile unit (tiles.h), or rounded to bfloat16 and packed in pairs along the depth (panel_product.h).
#pragma once

#include "factor_rows.h"
#include "packed_gemm.h"
#include "pair_dot.h"
#include "panel_product.h"
#include "ragged.h"
#include "sequences.h"
#include "tile_packing.h"
#include "tile_product.h"

namespace rtf {

// A recurrence with products. If they are rounded, both factors are, to bfloat16; their sums are float.
struct Recurrence : RtfSequences {
  bool rounded;

  Recurrence(const RtfSequences& sequences, bool rounded = false)  // NOLINT(google-explicit-constructor)
      : RtfSequences(sequences), rounded(rounded) {}
};

// Whether there are instructions for pairs of bfloat16, without which no recurrence is rounded.
constexpr bool kRounds = RTF_PAIRS;

inline int64_t blocks_of(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// Whether the steps of a recurrence run on the tile unit: for the sizes at which it was measured to be faster than
// vectors, with one thread and with two (bench/lstm_kernel.cc). It takes 16 rows at once, best in pairs of blocks; a
// single block takes two thirds of the time of a pair; with few units, moving sums and states dominates the products.
// The answer must not depend on the number of threads, because the last bits of the results depend on it. For rounded
// factors it was not measured yet.
inline bool by_tiles(const Recurrence& shape) {
  constexpr int64_t kRowsOfAllSteps = 256;  // minimum for split weights to pay off
  const int64_t blocks = blocks_of(shape.batch), thirds = blocks / 2 * 3 + blocks % 2 * 2;  // of the time of a pair
  const int64_t least_units = shape.batch >= 64 ? 96 : blocks == 3 ? 384 : 256;
  const bool filled = 13 * shape.batch >= 100 * thirds;  // 72 % of the rows
  return tiles_work() && filled && shape.units >= least_units && shape.frames * shape.batch >= kRowsOfAllSteps;
}

// Whether rows are packed by 16 for the product of the next step, see FactorRows.
inline bool packs_rows(const Recurrence& shape) { return shape.rounded || by_tiles(shape); }

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
inline int64_t n_shares(const Recurrence& shape, const RtfThreads& threads) {
  if (few_rows_in_all(shape)) return 1;
  const int64_t most = packs_rows(shape) ? blocks_of(shape.batch) : threads.n_threads;
  return std::min<int64_t>(threads.n_threads, most);
}

// Takes the rows of a product, parts as in tile_blocks; none if it reads floats. All that are used are written before
// they are read, but not the gaps between them.
inline FactorRows take_rows(Arena& arena, const Recurrence& shape, int64_t depth, int parts = 1) {
  if (!packs_rows(shape)) return {};
  const int64_t blocks = tile_blocks(depth, parts), n_rows = row_blocks(shape) * kTileRows;
  const int64_t size = row_blocks(shape) * blocks * (shape.rounded ? kTile : kSplitTile);
  auto* memory = reinterpret_cast<Bfloat16*>(arena.take(size / 2));
  FactorRows rows;
  if (shape.rounded)
    rows.rounded = {memory, blocks * kTileDepth};
  else
    rows.split = {memory, blocks};
  rows.rounded.clear(n_rows);
  rows.split.clear(n_rows);
  return rows;
}

// A matrix [depth, columns]; see n_panels for parts. One for the backward pass is the transpose of what is given.
template <int kParts, bool kTransposed = false>
class Weights {
 public:
  static constexpr int kTileWidth = kParts == 4 ? 4 : 2;  // tiles of columns in a panel of split numbers

  // Takes the memory that any of the forms needs.
  static float* take(Arena& arena, const Recurrence& shape, int64_t depth, int64_t columns, int parts_of_depth = 1) {
    const int64_t blocks = tile_blocks(depth, parts_of_depth);
    if (shape.rounded) return arena.take(tile_panels<kVectors>(columns) * kVectors * blocks * kTile / 2);
    if (by_tiles(shape)) return arena.take(tile_panels<kTileWidth>(columns) * kTileWidth * blocks * kSplitTile / 2);
    return arena.take(std::max(packed_size(depth, columns, kParts), kMostPlainRows * columns));
  }

  static Weights of(const Recurrence& shape, const float* w, int64_t depth, int64_t columns, float* memory,
                    const RtfThreads& threads) {
    static_assert(!kTransposed, "these are the weights of a forward pass");
    if (packs_rows(shape))
      return by_columns(shape, depth, columns, 1, memory, threads,
                        [&](auto parts, int64_t column, int n, Bfloat16* to) {
                          pack_columns<parts>(w + column, columns, depth, n, to);
                        });
    if (few_rows_in_all(shape) && has_whole_panels(columns))
      return Weights(plain_matrix(w, depth, columns, kParts), Form::kAsItIs, nullptr, memory);
    run_ranges(threads, n_panels(columns, kParts),
               [&](int64_t first, int64_t last) { pack(w, depth, columns, first, last, memory, kParts); });
    return Weights(packed_matrix(memory, depth, columns, kParts));
  }

  // The transpose of w [columns, depth], for the backward pass. The depth consists of parts.
  static Weights transposed(const Recurrence& shape, const float* w, int64_t depth, int64_t columns, int parts_of_depth,
                            float* memory, const RtfThreads& threads) {
    static_assert(kTransposed && kParts == 1, "not needed so far");
    if (packs_rows(shape))
      return by_columns(shape, depth, columns, parts_of_depth, memory, threads,
                        [&](auto parts, int64_t column, int n, Bfloat16* to) {
                          pack_columns_transposed<parts>(w + column * depth, depth, depth, parts_of_depth, n, to);
                        });
    run_ranges(threads, n_panels(columns),
               [&](int64_t first, int64_t last) { pack_transposed(w, depth, columns, first, last, memory); });
    return Weights(packed_matrix(memory, depth, columns));
  }

  int64_t panels() const {
    return form_ == Form::kSplit ? tile_panels<kTileWidth>(vectors_.columns) : vectors_.panels();
  }

  // epilogue(panel, width, row, x(row) * panel as vectors) for the panels first .. last - 1 and all rows, where width()
  // is the number of vectors in a panel and packed has the same rows as x. backward: see in_turn.
  template <typename Input, typename Epilogue>
  void multiply(const Input& x, const FactorRows& packed, int64_t n_rows, int64_t first, int64_t last, bool backward,
                const Epilogue& epilogue) const {
    if (form_ == Form::kSplit)
      return multiply_tiles<kTileWidth>(packed.split, n_rows, packed_, first, last, backward,
                                        [&](int64_t panel, int64_t row, const Vec* sums) {
                                          epilogue(panel, std::integral_constant<int, kTileWidth>(), row, sums);
                                        });
    if constexpr (kRounds)
      if (rounded()) return multiply_rounded(packed.rounded, n_rows, first, last, epilogue);
    if constexpr (!kTransposed)
      if (form_ == Form::kAsItIs) return multiply_as_it_is(x, n_rows, first, last, epilogue);
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
      if (form_ == Form::kSplit)
        function(panel, std::integral_constant<int, kTileWidth>());
      else
        function(panel, std::integral_constant<int, kVectors>());
    }
  }

 private:
  // The form of rounded numbers is the same for tiles and for vectors.
  enum class Form { kVectors, kAsItIs, kSplit, kRounded, kRoundedOnTiles };

  explicit Weights(const Matrix& vectors, Form form = Form::kVectors, const Bfloat16* packed = nullptr,
                   float* sums = nullptr)
      : vectors_(vectors), form_(form), packed_(packed), sums_(sums) {}

  bool rounded() const { return form_ == Form::kRounded || form_ == Form::kRoundedOnTiles; }

  template <typename Epilogue>
  void multiply_rounded(const RoundedRows& x, int64_t n_rows, int64_t first, int64_t last,
                        const Epilogue& epilogue) const {
    const auto write = [&](int64_t row, int64_t column, int, const float* sums) __attribute__((always_inline)) {
      Vec of_panel[kVectors];
      for (int v = 0; v < kVectors; ++v) of_panel[v] = load(sums + v * kLanes);
      epilogue(column / kPanel, std::integral_constant<int, kVectors>(), row, of_panel);
    };
    using Product = PanelProduct<PairDot, decltype(write)>;
    static_assert(!kRounds || Product::kBlock == kPanel, "a block of the product has all gates of some units");
    const PanelRows rows{x.width / 2, x.width * static_cast<int64_t>(sizeof(Bfloat16)),
                         reinterpret_cast<const uint8_t*>(x.data)};
    Product(panels() * kPanel, rows, reinterpret_cast<const uint8_t*>(packed_), write)
        .run(first, last, 0, n_rows, form_ == Form::kRoundedOnTiles);
  }

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

  template <int kWidth>
  static int64_t tile_panels(int64_t columns) {
    const int64_t slice = kWidth * kLanes / kParts;
    return (columns / kParts + slice - 1) / slice;
  }

  // pack(parts of a number, column, number of existing ones, memory) for each tile of columns.
  template <typename Pack>
  static Weights by_columns(const Recurrence& shape, int64_t depth, int64_t columns, int parts_of_depth, float* memory,
                            const RtfThreads& threads, const Pack& pack) {
    Bfloat16* to = reinterpret_cast<Bfloat16*>(memory);
    const int64_t blocks = tile_blocks(depth, parts_of_depth);
    if (shape.rounded)
      pack_tiles<1, kVectors>(columns, blocks, to, threads, pack);
    else
      pack_tiles<kSplit, kTileWidth>(columns, blocks, to, threads, pack);
    const Form form = !shape.rounded ? Form::kSplit : by_tiles(shape) ? Form::kRoundedOnTiles : Form::kRounded;
    return Weights(Matrix{nullptr, depth, columns, kParts, 0, 0, {}}, form, to);
  }

  // A panel of kWidth tiles has the same columns of all parts.
  template <int kPartsOfNumber, int kWidth, typename Pack>
  static void pack_tiles(int64_t columns, int64_t blocks, Bfloat16* to, const RtfThreads& threads, const Pack& pack) {
    constexpr int kOfPart = kWidth / kParts;
    const int64_t width = columns / kParts;
    run_ranges(threads, tile_panels<kWidth>(columns) * kWidth, [&](int64_t first, int64_t last) {
      for (int64_t tile = first; tile < last; ++tile) {
        const int64_t part = tile % kWidth / kOfPart, at = (tile / kWidth * kOfPart + tile % kOfPart) * kLanes;
        const int n = static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(kLanes, width - at)));
        pack(std::integral_constant<int, kPartsOfNumber>(), n > 0 ? part * width + at : 0, n,
             to + tile * blocks * kPartsOfNumber * kTile);
      }
    });
  }

  Matrix vectors_;
  Form form_;
  const Bfloat16* packed_;  // split or rounded numbers; else null
  float* sums_;             // the products of an unpacked matrix; else null
};

using TransposedWeights = Weights<1, true>;

}  // namespace rtf
