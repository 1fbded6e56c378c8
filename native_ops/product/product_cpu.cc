// Products of large matrices: each thread takes a part of the result and packs what it needs of both factors piece by
// piece, so that the pieces stay in its own caches. Uses the tile unit (common/tiles.h) if there is one.
#include "by_pairs.h"
#include "by_vectors.h"
#include "pieces.h"
#include "product.h"

namespace rtf {
namespace {

// Units for pairs pay off if there is enough to fill the tiles.
bool fills_tiles(const RtfProduct& shape) {
  return shape.rows >= 2 * kTileRows && shape.columns >= kLanes && shape.depth >= kLanes / 2;
}

template <typename Form>
struct With {
  using Type = Form;
};

// function(With<form>()) for the form of a product.
template <typename Function>
auto with_form(const RtfProduct& shape, const Function& function) {
#if RTF_TILES
  if (fills_tiles(shape) && tiles_work())
    return shape.rounded ? function(With<ByPairs<TileProduct<1>>>()) : function(With<ByPairs<TileProduct<kSplit>>>());
#endif
#if RTF_PAIRS
  if (fills_tiles(shape) && shape.rounded) return function(With<ByPairs<PairProduct>>());
#endif
  return shape.rounded ? function(With<ByVectors<true>>()) : function(With<ByVectors<false>>());
}

// How the rows and the columns of a result are divided among threads.
struct Grid {
  int64_t rows, columns;

  int64_t parts() const { return rows * columns; }

  // Part index of a range: a multiple of the step, and nearly as large as the others.
  static Range part_of(int64_t n, int64_t step, int64_t index, int64_t count) {
    const int64_t steps = pieces_of(n, step);
    return {std::min(n, index * steps / count * step), std::min(n, (index + 1) * steps / count * step)};
  }

  // A product of which no part is larger.
  template <typename Form>
  RtfProduct largest_part(const RtfProduct& shape) const {
    RtfProduct part = shape;
    part.rows = pieces_of(pieces_of(shape.rows, Form::kStepOfRows), rows) * Form::kStepOfRows;
    part.columns = pieces_of(pieces_of(shape.columns, Form::kStepOfColumns), columns) * Form::kStepOfColumns;
    return part;
  }
};

// The grid whose largest part is done first. Packing an entry of a factor takes as long as some multiplications of
// vectors, and each part packs its rows and its columns.
template <typename Form>
Grid grid(const RtfProduct& shape, int64_t n_threads) {
  constexpr int64_t kPacking = 32;
  const int64_t row_steps = pieces_of(shape.rows, Form::kStepOfRows);
  const int64_t column_steps = pieces_of(shape.columns, Form::kStepOfColumns);
  Grid best{1, 1};
  int64_t least = INT64_MAX;
  for (int64_t rows = 1; rows <= std::max<int64_t>(1, std::min(n_threads, row_steps)); ++rows) {
    const int64_t columns = std::max<int64_t>(1, std::min(n_threads / rows, column_steps));
    const Grid parts{rows, columns};
    const RtfProduct part = parts.largest_part<Form>(shape);
    const int64_t cost = part.rows * part.columns + kPacking * (part.rows + part.columns);
    if (cost >= least) continue;
    least = cost;
    best = parts;
  }
  return best;
}

template <typename Form>
void run(const RtfProduct& shape, const Factor& a, const Factor& b, const float* bias, float* y, float* scratch,
         const RtfThreads& threads) {
  const Grid parts = grid<Form>(shape, threads.n_threads);
  const RtfProduct part = parts.largest_part<Form>(shape);
  const int64_t size = size_of<typename Form::Memory>(part);
  run_tasks(threads, parts.parts(), [&](int64_t index) {
    const Range rows = Grid::part_of(shape.rows, Form::kStepOfRows, index / parts.columns, parts.rows);
    const Range columns = Grid::part_of(shape.columns, Form::kStepOfColumns, index % parts.columns, parts.columns);
    Arena arena(scratch, index, size);
    const typename Form::Memory memory(arena, part);
    Form(shape, a, b, y, memory).run(rows, columns, bias);
  });
}

template <typename Form>
int64_t scratch_size(const RtfProduct& shape, int n_threads) {
  const Grid parts = grid<Form>(shape, n_threads);
  return scratch_of(size_of<typename Form::Memory>(parts.largest_part<Form>(shape)), parts.parts());
}

}  // namespace
}  // namespace rtf

extern "C" {

int rtf_product_by_tiles(void) { return rtf::tiles_work(); }

int rtf_product_by_pairs(void) { return RTF_PAIRS; }

int rtf_product_by_fma(void) {
#if defined(__AVX2__) && defined(__FMA__)
  return 1;
#else
  return 0;
#endif
}

int64_t rtf_product_scratch_size(const RtfProduct* shape, int n_threads) {
  using namespace rtf;
  return with_form(*shape, [&](auto form) { return scratch_size<typename decltype(form)::Type>(*shape, n_threads); });
}

void rtf_product_f32(const RtfProduct* shape, const float* a, const float* b, const float* bias, float* y,
                     float* scratch, const RtfThreads* threads) {
  using namespace rtf;
  const Factor left(a, shape->rows, shape->depth, shape->transpose_a);
  const Factor right(b, shape->depth, shape->columns, shape->transpose_b);
  with_form(*shape,
            [&](auto form) { run<typename decltype(form)::Type>(*shape, left, right, bias, y, scratch, *threads); });
}
}
