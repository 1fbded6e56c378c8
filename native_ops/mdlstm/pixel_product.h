// The product of a diagonal: an array of each of its pixels times the recurrent weights of a direction. Factors are
// floats, or rounded to bfloat16 with sums in float: the weights once per pass, while they are packed, and the arrays
// right before the product.
#pragma once

#include <vector>

#include "../common/factor_rows.h"
#include "../common/packed_gemm.h"
#include "../common/pair_dot.h"
#include "../common/panel_product.h"
#include "../common/tile_packing.h"

namespace rtf {

// A packed matrix [depth, columns].
struct PixelWeights {
  int64_t depth, columns;
  bool rounded;

  // In floats.
  int64_t size() const {
    return rounded ? (panels() - 1) * floats_of_panel() + tile_blocks(depth) * kTile / 2 : packed_size(depth, columns);
  }

  void pack(const float* w, float* to) const {
    if (!rounded) return rtf::pack(w, depth, columns, 0, n_panels(columns), to);
    pack_rounded(
        to, [&](int64_t column, int n, Bfloat16* panel) { pack_columns<1>(w + column, columns, depth, n, panel); });
  }

  // The transpose of w [columns, depth].
  void pack_transposed(const float* w, float* to) const {
    if (!rounded) return rtf::pack_transposed(w, depth, columns, 0, n_panels(columns), to);
    pack_rounded(to, [&](int64_t column, int n, Bfloat16* panel) {
      pack_columns_transposed<1>(w + column * depth, depth, depth, 1, n, panel);
    });
  }

  // The pairs of a rounded row that are multiplied, and the numbers of one in memory, with zeros behind the last one.
  // Vectors need not multiply zeros.
  int64_t pairs() const { return RTF_TILES ? width() / 2 : (depth + 1) / 2; }
  int64_t width() const { return tile_blocks(depth) * kTileDepth; }

 private:
  static_assert(kPanelColumns == kTileRows, "a panel of panel_product.h is a column of tiles");

  int64_t panels() const { return (columns + kPanelColumns - 1) / kPanelColumns; }
  int64_t floats_of_panel() const { return pairs() * kPanelColumns; }

  // A panel is packed in whole tiles, of which the next one takes the place of the zeros behind the last pair.
  template <typename Pack>
  void pack_rounded(float* to, const Pack& pack) const {
    for (int64_t panel = 0; panel < panels(); ++panel) {
      const int64_t column = panel * kPanelColumns;
      pack(column, static_cast<int>(std::min(kPanelColumns, columns - column)),
           reinterpret_cast<Bfloat16*>(to + panel * floats_of_panel()));
    }
  }
};

class PixelProduct {
 public:
  PixelProduct(const PixelWeights& weights, const float* packed) : weights_(weights), packed_(packed) {}

  // y[row] [columns] += x[row] [depth] * weights, for all rows
  void add(const std::vector<const float*>& x, const std::vector<float*>& y) {
    if (weights_.rounded)
      add_rounded(x, y);
    else
      multiply_add(x.data(), x.size(), weights_.depth, packed_, weights_.columns, y.data());
  }

 private:
  void add_rounded(const std::vector<const float*>& x, const std::vector<float*>& y) {
    const int64_t n_rows = x.size(), width = weights_.width(), columns = weights_.columns;
    // also what tiles read behind the last row
    numbers_.resize(std::max<size_t>(numbers_.size(), round_up(n_rows, kTileRows) * width));
    const FactorRows rows{{}, {numbers_.data(), width}};
    for (int64_t row = 0; row < n_rows; ++row) rows.put_row(row, x[row], weights_.depth);
    const auto add = [&](int64_t row, int64_t begin, int of, const float* sums) {
      const int64_t n = std::min<int64_t>(of, columns - begin);
      float* to = y[row] + begin;
      by_vectors(
          n, [&](int64_t u, auto whole, int lanes) __attribute__((always_inline)) {
            constexpr bool kWhole = decltype(whole)::value;
            store_n<kWhole>(to + u, load_n<kWhole>(to + u, lanes) + load(sums + u), lanes);
          });
    };
    const PanelRows panel_rows{weights_.pairs(), width * static_cast<int64_t>(sizeof(Bfloat16)),
                               reinterpret_cast<const uint8_t*>(numbers_.data())};
    using Product = PanelProduct<PairDot, decltype(add)>;
    // On tiles for any number of rows, so that images do not depend on the others.
    Product(columns, panel_rows, reinterpret_cast<const uint8_t*>(packed_), add)
        .run(0, (columns + Product::kBlock - 1) / Product::kBlock, 0, n_rows, tiles_work());
  }

  PixelWeights weights_;
  const float* packed_;
  std::vector<Bfloat16> numbers_;  // the rounded rows
};

}  // namespace rtf
