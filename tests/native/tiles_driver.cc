// Products on the tile unit against sums in double: as good as with float arithmetic, for every size; numbers that are
// not finite stay in their rows and columns. Prints "good", or "none" where the CPU has no such unit.
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "common/tile_packing.h"
#include "common/tile_product.h"
#include "driver.h"

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Size {
  int64_t rows, depth, columns;
  int parts;  // of the depth
};

// x [rows, depth] * w [depth, columns]; w is packed as it is, or from its transposed.
template <int kWidth>
Array product(const Size& size, const Array& x, const Array& w, bool transposed) {
  using namespace rtf;
  const int64_t width = size.depth / size.parts, panels = (size.columns + kWidth * kLanes - 1) / (kWidth * kLanes);
  TileRows rows{nullptr, tile_blocks(size.depth, size.parts)};
  std::vector<Bfloat16, BeforeGuard<Bfloat16>> x_memory(round_up(size.rows, 2 * kTileRows) * rows.blocks * kTileDepth *
                                                        kSplit);
  std::vector<Bfloat16, BeforeGuard<Bfloat16>> w_memory(panels * kWidth * rows.blocks * kSplitTile);
  rows.data = x_memory.data();
  for (int64_t row = 0; row < size.rows; ++row)
    for (int part = 0; part < size.parts; ++part)
      for (int64_t u = 0; u < width; u += kLanes) {
        const int n = static_cast<int>(std::min<int64_t>(kLanes, width - u));
        rows.put<false>(row, part * round_up(width, kLanes) + u, load_part(&x[row * size.depth + part * width + u], n),
                        n);
      }
  for (int64_t tile = 0; tile < panels * kWidth; ++tile) {
    const int64_t column = std::min(tile * kLanes, size.columns);
    const int n = static_cast<int>(std::min<int64_t>(kLanes, size.columns - column));
    Bfloat16* to = w_memory.data() + tile * rows.blocks * kSplitTile;
    if (transposed)
      pack_columns_transposed<kSplit>(w.data() + column * size.depth, size.depth, size.depth, size.parts, n, to);
    else
      pack_columns<kSplit>(w.data() + column, size.columns, size.depth, n, to);
  }
  Array y(size.rows * size.columns);
  const auto store_row = [&](int64_t panel, int64_t row, const Vec* sums) {
    for (int v = 0; v < kWidth; ++v)
      for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t column = (panel * kWidth + v) * kLanes + lane;
        if (column < size.columns) y[row * size.columns + column] = sums[v][lane];
      }
  };
  multiply_tiles<kWidth>(rows, size.rows, w_memory.data(), 0, panels, transposed, store_row);
  return y;
}

bool check(const Size& size, const Array& x, const Array& w, const Array& y, bool transposed) {
  for (int64_t row = 0; row < size.rows; ++row)
    for (int64_t column = 0; column < size.columns; ++column) {
      double sum = 0, most = 0;
      for (int64_t k = 0; k < size.depth; ++k) {
        const double term =
            double(x[row * size.depth + k]) * w[transposed ? column * size.depth + k : k * size.columns + column];
        sum += term;
        most += std::fabs(term);
      }
      const float result = y[row * size.columns + column];
      const double error = std::fabs(result - sum), allowed = most * std::ldexp(1.0, -21);
      if (std::isfinite(sum) ? error <= allowed : !std::isfinite(result)) continue;
      std::printf("wrong: [%ld, %ld] of %ld x %ld x %ld, transposed %d: %g, not %g\n", long(row), long(column),
                  long(size.rows), long(size.depth), long(size.columns), transposed, result, sum);
      return false;
    }
  return true;
}

bool check_size(const Size& size, bool with_special) {
  Array x = random_array(size.rows * size.depth), w = random_array(size.depth * size.columns);
  for (size_t i = 0; i < w.size(); i += 7) w[i] *= 1e-6f;
  for (size_t i = 0; i < x.size(); i += 5) x[i] *= 1e5f;
  if (with_special) {
    x[x.size() / 2] = NAN;
    x.back() = kInfinity;
    w[0] = -kInfinity;
  }
  bool good = true;
  for (bool transposed : {false, true}) {
    if (!transposed && size.parts > 1) continue;
    const Array two = product<2>(size, x, w, transposed), four = product<4>(size, x, w, transposed);
    good &= check(size, x, w, two, transposed) && check(size, x, w, four, transposed);
    for (size_t i = 0; i < two.size(); ++i) good &= two[i] == four[i] || with_special;
  }
  return good;
}

}  // namespace

int main() {
  if (!rtf::tiles_work()) {
    std::puts("none");
    return 0;
  }
  bool good = true;
  for (int64_t rows : {1, 16, 17, 32, 47, 70})
    for (int64_t columns : {1, 16, 31, 64, 100})
      for (const auto& [depth, parts] :
           {std::pair<int64_t, int>{1, 1}, {31, 1}, {64, 1}, {100, 1}, {68, 4}, {128, 4}, {66, 2}})
        for (bool with_special : {false, true}) good &= check_size(Size{rows, depth, columns, parts}, with_special);
  // rows do not depend on each other, in whichever block of the batch they are
  const Array x = random_array(70 * 64), w = random_array(64 * 96);
  const Array all = product<2>(Size{70, 64, 96, 1}, x, w, false);
  for (int64_t row = 0; row < 70; ++row) {
    const Array one(x.begin() + row * 64, x.begin() + (row + 1) * 64),
        alone = product<2>(Size{1, 64, 96, 1}, one, w, false);
    for (int64_t column = 0; column < 96; ++column) good &= alone[column] == all[row * 96 + column];
  }
  std::puts(good ? "good" : "wrong");
  return good ? 0 : 1;
}
