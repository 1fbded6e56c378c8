// The rows are rounded first; see common/panel_product.h for the rest.
#include "../common/bfloat16.h"
#include "../common/pair_dot.h"
#include "../common/panel_product.h"
#include "../common/rows.h"
#include "bfloat16.h"

namespace rtf {
namespace {

constexpr int64_t kGroup = 2;  // steps of the depth

int64_t groups_of(int64_t depth) { return (depth + kGroup - 1) / kGroup; }

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_bfloat16_matrix_size(int64_t depth, int64_t columns) {
  return rtf::round_up(columns, rtf::kPanelColumns) * rtf::groups_of(depth) * rtf::kGroup;
}

int64_t rtf_bfloat16_scratch_size(int64_t rows, int64_t depth) {
  return rtf::PanelRows::size(rows, depth * static_cast<int64_t>(sizeof(uint16_t)));
}

void rtf_bfloat16_product_f32(int64_t rows, int64_t depth, int64_t columns, const float* x, const uint16_t* w, float* y,
                              void* scratch, const RtfThreads* threads) {
  const int64_t stride = rtf::PanelRows::stride_of(depth * static_cast<int64_t>(sizeof(uint16_t)));
  const int64_t width = stride / static_cast<int64_t>(sizeof(uint16_t));
  auto* numbers = static_cast<uint16_t*>(scratch);
  rtf::run_rows(*threads, rows, depth, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      uint16_t* to = numbers + row * width;
      for (int64_t k = 0; k < depth; ++k) to[k] = rtf::rounded(x[row * depth + k]);
      std::fill(to + depth, to + width, uint16_t{0});
    }
  });
  const rtf::PanelRows panel_rows{rtf::groups_of(depth), stride, reinterpret_cast<const uint8_t*>(numbers)};
  rtf::multiply_panels<rtf::PairDot>(
      rows, depth, columns, panel_rows, reinterpret_cast<const uint8_t*>(w),
      *threads, [&](int64_t row, int64_t column, int of, const float* sums) __attribute__((always_inline)) {
        const int64_t n = std::min<int64_t>(of, columns - column);
        std::memcpy(y + row * columns + column, sums, n * sizeof(float));
      });
}
}
