// Products of a block with a matrix that fits into a core's cache, by vectors of floats: sums of kMaxRows rows and up
// to 4 vectors of columns stay in registers over the whole depth.
#pragma once

#include "../common/packed_gemm.h"
#include "blocks.h"

namespace rtf {

struct VectorProducts {
  static constexpr BlockSizes kSizes{kLanes, kMaxRows, 2 * kMaxRows, 48};

  struct Ready {
    Ready() {}
  };

  // Packed panel by panel, each with all rows.
  struct AsColumns {
    AsColumns(Arena& arena, int64_t size, int64_t most) : size(size), data(arena.take(size * whole_vectors(most))) {}

    void pack(const float* from, int64_t step, int64_t n) {
      packed = whole_vectors(n);
      for (int64_t begin = 0; begin < n; begin += kPanel) {
        const int64_t count = std::min<int64_t>(kPanel, n - begin), width = whole_vectors(count);
        float* to = data + begin * size;
        for (int64_t column = 0; column < count; ++column)
          for (int64_t k = 0; k < size; ++k) to[k * width + column] = from[(begin + column) * step + k];
        for (int64_t k = 0; k < size; ++k) std::fill(to + k * width + count, to + (k + 1) * width, 0.0f);
      }
    }

    Columns panel(int64_t column) const { return {data + column * size, std::min<int64_t>(kPanel, packed - column)}; }

    int64_t size, packed = 0;
    float* data;
  };

  // Not packed.
  struct AsRows {
    AsRows(Arena& arena, int64_t size, int64_t most)
        : size(size), width(whole_vectors(size)), data(arena.take(most * width)) {}

    void pack(const float* from, int64_t step, int64_t n) { pack_rows(from, step, n, size, 1.0f, data, width); }

    int64_t size, width;
    float* data;
  };

  struct Sums {
    Sums(Arena& arena, int64_t size, int64_t most)
        : size(size), width(whole_vectors(size)), n(most), data(arena.take(most * width)) {}

    void clear() const { std::fill_n(data, n * width, 0.0f); }
    void write(int64_t count, float* to, int64_t step) const { scale_rows(data, width, count, size, 1.0f, to, step); }

    int64_t size, width, n;
    float* data;
  };

  VectorProducts(Arena&, const Sizes&) {}

  static Vec factor(Vec x) { return x; }

  void multiply(const Block& left, const AsColumns& right, int64_t n, float* to, int64_t step) const {
    const auto panel = [&](int64_t column) { return right.panel(column); };
    multiply_panels(Strided{left.data, left.step, 1}, left.rows, left.columns, panel, whole_vectors(n), to, step,
                    false);
  }

  void multiply(const Block& left, const AsRows& right, float* to, int64_t step, bool add) const {
    multiply_rows(Strided{left.data, left.step, 1}, left.rows, left.columns, Columns{right.data, right.width},
                  right.width, to, step, add);
  }

  void add(const Block& a, const Block& b, const Sums& sums) const {
    multiply_rows(Strided{a.data, 1, a.step}, a.columns, a.rows, Columns{b.data, b.step}, sums.width, sums.data,
                  sums.width, true);
  }

 private:
  template <int kRows, int kWidth>
  static inline __attribute__((always_inline)) void multiply_few(const Strided& left, const Columns& right,
                                                                 int64_t depth, float* to, int64_t step, bool add) {
    Vec sums[kRows][kWidth];
    multiply_block<kRows, kWidth>(depth, left, right, FromZero(), sums);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
      for (int v = 0; v < kWidth; ++v) {
        float* at = to + row * step + v * kLanes;
        store(at, add ? load(at) + sums[row][v] : sums[row][v]);
      }
  }

  template <int kWidth>
  static void multiply_panel(const Strided& left, int64_t rows, int64_t depth, const Columns& right, float* to,
                             int64_t step, bool add) {
    for_row_blocks(
        rows, [&](auto count, int64_t first) __attribute__((always_inline)) {
          const Strided few{left.data + first * left.row_step, left.row_step, left.depth_step};
          multiply_few<count, kWidth>(few, right, depth, to + first * step, step, add);
        });
  }

  // panel(column): where the columns of a panel are. They are in whole vectors.
  template <typename Panel>
  static void multiply_panels(const Strided& left, int64_t rows, int64_t depth, const Panel& panel, int64_t columns,
                              float* to, int64_t step, bool add) {
    for (int64_t column = 0; column < columns; column += kPanel) {
      const int64_t width = std::min<int64_t>(kPanel, columns - column);
      with_constant<kVectors>(width / kLanes, [&](auto vectors) {
        multiply_panel<vectors>(left, rows, depth, panel(column), to + column, step, add);
      });
    }
  }

  static void multiply_rows(const Strided& left, int64_t rows, int64_t depth, const Columns& right, int64_t columns,
                            float* to, int64_t step, bool add) {
    const auto panel = [&](int64_t column) { return Columns{right.data + column, right.step}; };
    multiply_panels(left, rows, depth, panel, columns, to, step, add);
  }
};

}  // namespace rtf
