// The rows are rounded first; see common/panel_product.h for the rest.
#include <cmath>

#include "../common/arena.h"
#include "../common/panel_product.h"
#include "../common/rows.h"
#include "dot.h"
#include "int8.h"

namespace rtf {
namespace {

constexpr int64_t kGroup = 4;              // steps of the depth
constexpr float kLeast = 0x1p-100f;        // 127 / largest is finite from here on
constexpr int32_t kInfinity = 0x7f800000;  // the bits of a float

int64_t groups_of(int64_t depth) { return (depth + kGroup - 1) / kGroup; }

// Rows that are rounded: int8 [rows, stride], see PanelRows, and the scale and the sum of each row.
struct Rounded {
  int64_t depth, stride;
  int8_t* numbers;
  float* scales;
  int32_t* sums;

  Rounded(int64_t rows, int64_t depth, void* memory)
      : depth(depth),
        stride(PanelRows::stride_of(depth)),
        numbers(static_cast<int8_t*>(memory)),
        scales(reinterpret_cast<float*>(numbers + PanelRows::size(rows, depth))),
        sums(reinterpret_cast<int32_t*>(scales + rows)) {}

  static int64_t size(int64_t rows, int64_t depth) {
    return PanelRows::size(rows, depth) + rows * static_cast<int64_t>(sizeof(float) + sizeof(int32_t));
  }

  PanelRows panel_rows() const { return {groups_of(depth), stride, reinterpret_cast<const uint8_t*>(numbers)}; }

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
};

// Writes columns of a row, as far as they are in the matrix.
struct Epilogue {
  const Rounded& x;
  int64_t columns;
  const float* scales;
  const RtfAfterProduct after;
  float* y;

  void operator()(int64_t row, int64_t column, int64_t width, const int32_t* sums) const {
    by_vectors(std::min(width, columns - column),
               [&](int64_t u, auto whole, int n) { write<decltype(whole)::value>(row, column + u, sums + u, n); });
  }

 private:
  typedef uint32_t Unsigned __attribute__((vector_size(sizeof(IVec))));

  template <bool kWhole>
  void write(int64_t row, int64_t column, const int32_t* sums, int n) const {
    const uint32_t start = static_cast<uint32_t>(Dot::kStart) * static_cast<uint32_t>(x.sums[row]);
    IVec integers{};
    std::memcpy(&integers, sums, n * sizeof(int32_t));
    integers = (IVec)((Unsigned)integers + start);  // which may wrap around
    const Vec found =
        __builtin_convertvector(integers, Vec) * (splat(x.scales[row]) * load_n<kWhole>(scales + column, n));
    store_n<kWhole>(y + row * columns + column, after_product<kWhole>(after, found, row, column, columns, n), n);
  }
};

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_int8_matrix_size(int64_t depth, int64_t columns) {
  return rtf::round_up(columns, rtf::kPanelColumns) * rtf::groups_of(depth) * rtf::kGroup;
}

int64_t rtf_int8_scratch_size(int64_t rows, int64_t depth) { return rtf::Rounded::size(rows, depth); }

void rtf_int8_product_f32(int64_t rows, int64_t depth, int64_t columns, const float* x, const uint8_t* w,
                          const float* scales, const RtfAfterProduct* after, float* y, void* scratch,
                          const RtfThreads* threads) {
  const rtf::Rounded rounded(rows, depth, scratch);
  rtf::run_rows(*threads, rows, depth, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) rounded.round(x + row * depth, row);
  });
  rtf::multiply_panels<rtf::Dot>(rows, depth, columns, rounded.panel_rows(), w, *threads,
                                 rtf::Epilogue{rounded, columns, scales, *after, y});
}
}
