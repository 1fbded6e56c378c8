// A thread takes panels of columns. The depth of a panel is taken in blocks that stay in the second cache of a core
// while all rows pass; meanwhile the next block is prefetched, since no cache holds the parameters of a model from one
// step of the search to the next.
#include <algorithm>
#include <cstring>
#include <vector>

#include "../common/packed_gemm.h"
#include "../common/ragged.h"
#include "packed.h"

namespace rtf {
namespace {

constexpr int64_t kLeastWork = 200'000;  // multiply-adds; below it, handing work to another thread takes longer
constexpr int64_t kDepthOfBlock = 512;   // 128 KB of a panel
constexpr int64_t kRowsAtOnce = 192;     // a multiple of kMaxRows; 384 KB of x for a block
constexpr int64_t kLine = 16;            // floats in a line of the cache
constexpr int64_t kGroup = 4;            // steps of the depth between prefetches

// The lines that are prefetched while all rows pass a block: as many as a block has.
class Ahead {
 public:
  Ahead(const float* from, const float* end, int64_t pieces)
      : at_(from), end_(end), lines_((kGroup * kPanel / kLine + pieces - 1) / pieces) {}

  void prefetch() {
    for (int64_t line = 0; line < lines_ && at_ < end_; ++line, at_ += kLine) prefetch_to_read(at_);
  }

 private:
  const float *at_, *end_;
  int64_t lines_;
};

class Product {
 public:
  Product(int64_t depth, int64_t columns, const float* x, const float* packed, const RtfAfterProduct& after, float* y)
      : depth_(depth), columns_(columns), x_(x), packed_(packed), after_(after), y_(y) {}

  // The panels first .. last - 1 of the rows begin .. end - 1.
  void run(int64_t first, int64_t last, int64_t begin, int64_t end) const {
    std::vector<float> sums(depth_ > kDepthOfBlock ? std::min(kRowsAtOnce, end - begin) * kPanel : 0);
    for (; begin < end; begin += kRowsAtOnce)
      for (int64_t panel = first; panel < last; ++panel) {
        const int64_t rows = std::min(kRowsAtOnce, end - begin);
        const float* end_of_panels = packed_ + last * depth_ * kPanel;
        for (int64_t k = 0; k == 0 || k < depth_; k += kDepthOfBlock)  // with no depth, what follows is written, too
          multiply(begin, rows, panel, k, end_of_panels, sums.data());
      }
  }

 private:
  // Adds a block of the depth from k on to the sums [n_rows, kPanel], or writes the results if it is the last one.
  void multiply(int64_t begin, int64_t n_rows, int64_t panel, int64_t k, const float* end, float* sums) const {
    const int64_t depth = std::min(kDepthOfBlock, depth_ - k);
    const float* from = packed_ + (panel * depth_ + k) * kPanel;
    Ahead ahead(from + depth * kPanel, end, (n_rows + kMaxRows - 1) / kMaxRows);
    const Columns columns{from, kPanel};
    const auto prefetch = [&](int64_t step) __attribute__((always_inline)) {
      if (step % kGroup == 0) ahead.prefetch();
    };
    for_row_blocks(
        n_rows, [&](auto count, int64_t at) __attribute__((always_inline)) {
          const Strided rows{x_ + (begin + at) * depth_ + k, depth_, 1};
          float* block = sums + at * kPanel;
          Vec found[count][kVectors];
          if (k == 0)
            multiply_block<count, kVectors>(depth, rows, columns, FromZero(), prefetch, found);
          else
            multiply_block<count, kVectors>(
                depth, rows, columns, [&](int row, int v) { return load(block + row * kPanel + v * kLanes); }, prefetch,
                found);
          if (k + depth == depth_)
            write(begin + at, count, panel * kPanel, found);
          else
            std::memcpy(block, found, sizeof(found));
        });
  }

  void write(int64_t row, int64_t n, int64_t column, const Vec (*sums)[kVectors]) const {
    for (const auto* end = sums + n; sums < end; ++sums, ++row)
      for_units(column, columns_, *sums, [&](int64_t at, auto whole, int lanes, Vec y) {
        constexpr bool kWhole = decltype(whole)::value;
        store_n<kWhole>(y_ + row * columns_ + at, after_product<kWhole>(after_, y, row, at, columns_, lanes), lanes);
      });
  }

  int64_t depth_, columns_;
  const float *x_, *packed_;
  const RtfAfterProduct after_;
  float* y_;
};

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_packed_size(int64_t depth, int64_t columns) { return rtf::packed_size(depth, columns); }

void rtf_pack_matrix_f32(int64_t depth, int64_t columns, int transposed, const float* w, float* packed,
                         const RtfThreads* threads) {
  const auto run = transposed ? rtf::pack_transposed
                              : [](const float* w, int64_t depth, int64_t columns, int64_t first, int64_t last,
                                   float* packed) { rtf::pack(w, depth, columns, first, last, packed); };
  rtf::run_ranges(*threads, rtf::n_panels(columns),
                  [&](int64_t first, int64_t last) { run(w, depth, columns, first, last, packed); });
}

void rtf_packed_product_f32(int64_t rows, int64_t depth, int64_t columns, const float* x, const float* packed,
                            const RtfAfterProduct* after, float* y, const RtfThreads* threads) {
  const rtf::Product product(depth, columns, x, packed, *after, y);
  const int64_t panels = rtf::n_panels(columns);
  if (rows * depth * columns < rtf::kLeastWork) return product.run(0, panels, 0, rows);
  if (panels >= threads->n_threads)
    return rtf::run_ranges(*threads, panels, [&](int64_t first, int64_t last) { product.run(first, last, 0, rows); });
  rtf::run_ranges(*threads, rows, [&](int64_t begin, int64_t end) { product.run(0, panels, begin, end); });
}
}
