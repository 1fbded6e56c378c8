// Products of large matrices: each thread takes some rows or some columns of the result and packs what it needs of both
// factors piece by piece, so that the pieces stay in its own caches. Uses the tile unit (common/tiles.h) if there is
// one.
#include "../common/packed_gemm.h"
#include "../common/ragged.h"
#include "../common/tile_packing.h"
#include "../common/tile_product.h"
#include "product.h"

namespace rtf {
namespace {

constexpr int64_t kRowsOfPiece = 2 * kTileRows, kDepthOfPiece = 320, kColumnsOfPiece = 640;  // 1.2 MB of packed b
static_assert(kDepthOfPiece % kTileDepth == 0 && kColumnsOfPiece % kPanel == 0, "pieces are whole tiles and panels");

// Maximum sizes of the pieces of a product, in whole tiles and panels.
int64_t depth_of_piece(const RtfProduct& shape) { return std::min(kDepthOfPiece, round_up(shape.depth, kTileDepth)); }
int64_t columns_of_piece(const RtfProduct& shape) {
  return std::min(kColumnsOfPiece, round_up(shape.columns, std::max<int64_t>(kPanel, 2 * kLanes)));
}

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// A matrix, or the transpose of what is stored.
struct Factor {
  const float* data;
  int64_t row_step, column_step;

  Factor(const float* data, int64_t rows, int64_t columns, bool transposed)
      : data(data), row_step(transposed ? 1 : columns), column_step(transposed ? rows : 1) {}

  const float* at(int64_t row, int64_t column) const { return data + row * row_step + column * column_step; }
  bool transposed() const { return column_step != 1; }
};

// Splits 0 .. n - 1 into parts of nearly equal size, multiples of a step.
Range part_of(int64_t n, int64_t step, int64_t index, int64_t count) {
  const int64_t steps = (n + step - 1) / step;
  return {std::min(n, index * steps / count * step), std::min(n, (index + 1) * steps / count * step)};
}

// The initial value of the sums of a row.
void start_sums(const float* bias, Range columns, float* to) {
  if (bias)
    std::copy(bias + columns.begin, bias + columns.end, to);
  else
    std::fill(to, to + columns.size(), 0.0f);
}

// function(range) for the pieces of a range.
template <typename Function>
void for_pieces(Range all, int64_t size, const Function& function) {
  for (int64_t at = all.begin; at < all.end; at += size) function(Range{at, std::min(all.end, at + size)});
}

// By vectors, for CPUs without a tile unit and for few rows.
struct ByVectors {
  static constexpr int64_t kRows = kMaxRows;

  static int64_t scratch_size(const RtfProduct& shape) {
    return (columns_of_piece(shape) + kRows) * depth_of_piece(shape) + kLanes;
  }

  ByVectors(const RtfProduct& shape, const Factor& a, const Factor& b, float* y, float* scratch)
      : shape(shape),
        a(a),
        b(b),
        y(y),
        packed(align_up(scratch)),
        rows(packed + columns_of_piece(shape) * depth_of_piece(shape)) {}

  void pack_columns(Range depth, Range columns) const {
    for (Range panel{columns.begin, 0}; panel.begin < columns.end; panel.begin += kPanel) {
      panel.end = std::min(columns.end, panel.begin + kPanel);
      float* to = packed + (panel.begin - columns.begin) * depth.size();
      for (int64_t k = depth.begin; k < depth.end; ++k, to += kPanel) {
        if (!b.transposed() && panel.size() == kPanel) {
          for (int v = 0; v < kVectors; ++v) store(to + v * kLanes, load(b.at(k, panel.begin + v * kLanes)));
          continue;
        }
        for (int64_t column = panel.begin; column < panel.end; ++column) to[column - panel.begin] = *b.at(k, column);
        std::fill(to + panel.size(), to + kPanel, 0.0f);
      }
    }
  }

  void multiply(Range depth, Range columns, Range some, const float* bias) const {
    for_pieces(some, kRows, [&](Range piece) {
      const float* x[kRows];
      float* to[kRows];
      for (int64_t row = piece.begin; row < piece.end; ++row) {
        const int64_t i = row - piece.begin;
        to[i] = y + row * shape.columns + columns.begin;
        if (depth.begin == 0) start_sums(bias, columns, to[i]);
        x[i] = a.at(row, depth.begin);
        if (!a.transposed()) continue;
        float* copy = rows + i * depth_of_piece(shape);
        for (int64_t k = depth.begin; k < depth.end; ++k) copy[k - depth.begin] = *a.at(row, k);
        x[i] = copy;
      }
      multiply_add(x, piece.size(), depth.size(), packed, columns.size(), to);
    });
  }

  const RtfProduct& shape;
  const Factor &a, &b;
  float *y, *packed, *rows;
};

#if RTF_TILES

struct ByTiles {
  static int64_t rows_size(const RtfProduct& shape) { return kRowsOfPiece * depth_of_piece(shape) * kSplit; }

  static int64_t scratch_size(const RtfProduct& shape) {
    return (columns_of_piece(shape) * depth_of_piece(shape) * kSplit + 2 * rows_size(shape)) / 2 + kLanes;
  }

  ByTiles(const RtfProduct& shape, const Factor& a, const Factor& b, float* y, float* scratch)
      : shape(shape),
        a(a),
        b(b),
        y(y),
        packed(reinterpret_cast<Bfloat16*>(align_up(scratch))),
        rows(packed + columns_of_piece(shape) * depth_of_piece(shape) * kSplit) {}

  // An even number of tiles, ordered as rows in memory.
  void pack_columns(Range depth, Range columns) const {
    const int64_t blocks = tile_blocks(depth.size());
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t k = depth.begin + block * kTileDepth;
      Bfloat16* to = packed + block * kSplitTile;
      for (int64_t at = columns.begin; at < columns.begin + round_up(columns.size(), 2 * kLanes); at += kLanes) {
        const int n = count_of(columns.end - at);
        const float* from = n > 0 ? b.at(k, at) : b.data;
        if (b.transposed())
          pairs_along(from, b.column_step, depth.end - k, n).transpose().store(to);
        else
          pairs_across(from, b.row_step, depth.end - k, n).store(to);
        to += blocks * kSplitTile;
      }
    }
  }

  static int count_of(int64_t rest) { return static_cast<int>(std::max<int64_t>(0, std::min(kTileRows, rest))); }

  // Packs the rows of a piece, tile by tile, while the tile unit multiplies those of the previous piece.
  struct NextRows {
    const ByTiles& form;
    Range depth, piece;
    Bfloat16* to;
    int64_t at = 0;

    int64_t tiles() const { return piece.size() > 0 ? 2 * tile_blocks(depth.size()) : 0; }

    void pack_all() {
      while (at < tiles()) pack_one();
    }

    __attribute__((noinline)) void pack_one() {
      const int64_t blocks = tile_blocks(depth.size());
      const int64_t row = piece.begin + at / blocks * kTileRows, k = depth.begin + at % blocks * kTileDepth;
      const int n = count_of(piece.end - row);
      const Factor& a = form.a;
      const float* from = n > 0 ? a.at(row, k) : a.data;
      Bfloat16* tile = to + at++ * kSplitTile;
      if (a.transposed())
        pairs_across(from, a.column_step, depth.end - k, n).transpose().store(tile);
      else
        pairs_along(from, a.row_step, depth.end - k, n).store(tile);
    }
  };

  void multiply(Range depth, Range columns, Range some, const float* bias) const {
    const TileUnit unit;
    const int64_t blocks = tile_blocks(depth.size()), pairs = (columns.size() + 2 * kLanes - 1) / (2 * kLanes);
    const int64_t pauses = kPauses * blocks * pairs;
    int side = 0;
    const auto rows_from = [&](int64_t begin) {
      return NextRows{*this, depth, {begin, std::min(some.end, begin + kRowsOfPiece)}, rows + side * rows_size(shape)};
    };
    rows_from(some.begin).pack_all();
    for_pieces(some, kRowsOfPiece, [&](Range piece) {
      const Bfloat16* x = rows + side * rows_size(shape);
      side = 1 - side;
      NextRows next = rows_from(piece.end);
      int64_t due = 0;
      const auto meanwhile = [&]() __attribute__((always_inline)) {
        for (due += next.tiles(); due >= pauses; due -= pauses) next.pack_one();
      };
      TileUnit::finish_writing(x);
      const Bfloat16* w = packed;
      for_pieces(columns, 2 * kLanes, [&](Range pair) {
        const bool whole = piece.size() == kRowsOfPiece && pair.size() == 2 * kLanes;
        const auto add = [&]() __attribute__((always_inline)) { multiply_2x2(x, w, blocks, meanwhile); };
        whole ? add_whole(depth, pair, piece, bias, add) : add_to_edge(depth, pair, piece, bias, add);
        w += 2 * blocks * kSplitTile;
      });
      next.pack_all();
    });
  }

  static Sums2x2 sums_at(float* at, int64_t step) {
    return {at, at + kLanes, at + kTileRows * step, at + kTileRows * step + kLanes,
            step * static_cast<int64_t>(sizeof(float))};
  }

  // The sums are those in y.
  template <typename Add>
  void add_whole(Range depth, Range pair, Range piece, const float* bias, const Add& add) const {
    const Sums2x2 sums = sums_at(y + piece.begin * shape.columns + pair.begin, shape.columns);
    if (depth.begin > 0) {
      load_sums(sums);
    } else if (bias) {  // the same for each row
      float* start = const_cast<float*>(bias + pair.begin);
      load_sums({start, start + kLanes, start, start + kLanes, 0});
    } else {
      zero_sums();
    }
    add();
    store_sums(sums);
  }

  // Some of the tiles are beyond y.
  template <typename Add>
  void add_to_edge(Range depth, Range pair, Range piece, const float* bias, const Add& add) const {
    alignas(64) float edge[4 * kSums] = {};
    const auto for_rows = [&](const auto& function) {
      for (int64_t row = piece.begin; row < piece.end; ++row)
        function(y + row * shape.columns + pair.begin, edge + (row - piece.begin) * 2 * kLanes);
    };
    for_rows([&](const float* in_y, float* in_edge) {
      if (depth.begin > 0)
        std::copy(in_y, in_y + pair.size(), in_edge);
      else
        start_sums(bias, pair, in_edge);
    });
    const Sums2x2 sums = sums_at(edge, 2 * kLanes);
    TileUnit::finish_writing(edge);
    load_sums(sums);
    add();
    store_sums(sums);
    for_rows([&](float* in_y, const float* in_edge) { std::copy(in_edge, in_edge + pair.size(), in_y); });
  }

  const RtfProduct& shape;
  const Factor &a, &b;
  float* y;
  Bfloat16 *packed, *rows;
};

#else

using ByTiles = ByVectors;

#endif

// The tile unit pays off if there is enough to fill the tiles.
bool by_tiles(const RtfProduct& shape) {
  return tiles_work() && shape.rows >= 2 * kTileRows && shape.columns >= kLanes && shape.depth >= kLanes / 2;
}

// The factor that is not divided among threads is packed by each of them.
bool deals_out_rows(const RtfProduct& shape) { return shape.rows >= shape.columns; }

int64_t step_of_parts(const RtfProduct& shape) { return deals_out_rows(shape) ? kRowsOfPiece : 2 * kLanes; }

int64_t n_parts(const RtfProduct& shape, int64_t n_threads) {
  const int64_t n = deals_out_rows(shape) ? shape.rows : shape.columns, step = step_of_parts(shape);
  return std::max<int64_t>(1, std::min(n_threads, (n + step - 1) / step));
}

template <typename Form>
void run(const RtfProduct& shape, const Factor& a, const Factor& b, const float* bias, float* y, float* scratch,
         Range rows, Range columns) {
  const Form form(shape, a, b, y, scratch);
  for_pieces(columns, kColumnsOfPiece, [&](Range some_columns) {
    const auto add = [&](Range depth) {
      form.pack_columns(depth, some_columns);
      form.multiply(depth, some_columns, rows, bias);
    };
    if (shape.depth == 0) add(Range{0, 0});  // only the initial values of the sums
    for_pieces(Range{0, shape.depth}, kDepthOfPiece, add);
  });
}

int64_t scratch_of_part(const RtfProduct& shape) {
  return round_up(by_tiles(shape) ? ByTiles::scratch_size(shape) : ByVectors::scratch_size(shape), kLanes);
}

}  // namespace
}  // namespace rtf

extern "C" {

int rtf_product_by_tiles(void) { return rtf::tiles_work(); }

int64_t rtf_product_scratch_size(const RtfProduct* shape, int n_threads) {
  return rtf::n_parts(*shape, n_threads) * rtf::scratch_of_part(*shape);
}

void rtf_product_f32(const RtfProduct* shape, const float* a, const float* b, const float* bias, float* y,
                     float* scratch, const RtfThreads* threads) {
  using namespace rtf;
  const Factor left(a, shape->rows, shape->depth, shape->transpose_a);
  const Factor right(b, shape->depth, shape->columns, shape->transpose_b);
  const int64_t count = n_parts(*shape, threads->n_threads);
  run_tasks(*threads, count, [&](int64_t index) {
    Range rows{0, shape->rows}, columns{0, shape->columns}, &dealt_out = deals_out_rows(*shape) ? rows : columns;
    dealt_out = part_of(dealt_out.end, step_of_parts(*shape), index, count);
    float* memory = scratch + index * scratch_of_part(*shape);
    if (by_tiles(*shape))
      run<ByTiles>(*shape, left, right, bias, y, memory, rows, columns);
    else
      run<ByVectors>(*shape, left, right, bias, y, memory, rows, columns);
  });
}
}
