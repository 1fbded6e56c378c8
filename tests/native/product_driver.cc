// Products of matrices on arrays of exactly the size that they need, which sanitizers or guards watch; against sums in
// double.
#include <cmath>
#include <vector>

#include "common/bfloat16.h"
#include "driver.h"
#include "product/product.h"

namespace {

Array product(const RtfProduct& shape, const Array& a, const Array& b, const Array* bias, const RtfThreads& threads) {
  Array y(shape.rows * shape.columns, NAN), scratch(rtf_product_scratch_size(&shape, threads.n_threads), NAN);
  rtf_product_f32(&shape, a.data(), b.data(), bias ? bias->data() : nullptr, y.data(), scratch.data(), &threads);
  return y;
}

std::vector<double> operands(const Array& x, bool rounded) {
  std::vector<double> values(x.begin(), x.end());
  if (rounded)
    for (size_t i = 0; i < x.size(); ++i) values[i] = rtf::float_of(static_cast<uint32_t>(rtf::rounded(x[i])) << 16);
  return values;
}

bool check(const RtfProduct& shape) {
  const Array a = random_array(shape.rows * shape.depth), b = random_array(shape.depth * shape.columns);
  const Array bias = random_array(shape.columns), *const some_bias = shape.depth % 2 ? &bias : nullptr;
  const Array y = product(shape, a, b, some_bias, RtfThreads{run_threads, nullptr, 1});
  bool good = true;
  for (int n_threads : {3, 4, 16})  // from 4 on, both rows and columns are divided
    good &= y == product(shape, a, b, some_bias, RtfThreads{run_threads, nullptr, n_threads});
  const std::vector<double> lefts = operands(a, shape.rounded), rights = operands(b, shape.rounded);
  const int64_t left_step = shape.transpose_a ? shape.rows : 1, right_step = shape.transpose_b ? 1 : shape.columns;
  for (int64_t row = 0; row < shape.rows; ++row)
    for (int64_t column = 0; column < shape.columns; ++column) {
      double sum = some_bias ? bias[column] : 0, most = std::fabs(sum);
      const double* left = lefts.data() + row * (shape.transpose_a ? 1 : shape.depth);
      const double* right = rights.data() + column * (shape.transpose_b ? shape.depth : 1);
      for (int64_t k = 0; k < shape.depth; ++k) {
        const double term = left[k * left_step] * right[k * right_step];
        sum += term;
        most += std::fabs(term);
      }
      good &= std::fabs(y[row * shape.columns + column] - sum) <= most * std::ldexp(1.0, -20);
    }
  if (!good)
    std::printf("wrong: %ld x %ld x %ld, transposed %d %d, rounded %d\n", long(shape.rows), long(shape.depth),
                long(shape.columns), shape.transpose_a, shape.transpose_b, shape.rounded);
  return good;
}

}  // namespace

int main() {
  for (int kind = 0; kind < 8; ++kind) {
    const int left = kind & 1, right = kind >> 1 & 1, rounded = kind >> 2;
    for (int64_t rows : {1, 31, 32, 70})
      for (int64_t depth : {1, 16, 33, 100})
        for (int64_t columns : {1, 16, 32, 45, 130})
          if (!check(RtfProduct{rows, depth, columns, left, right, rounded})) return 1;
    const int64_t others[][3] = {{0, 5, 40},    {40, 0, 40},   {40, 5, 0},     {50, 333, 35}, {34, 40, 650},
                                 {70, 321, 70}, {257, 20, 70}, {130, 9, 1100}, {35, 2070, 40}};
    for (const auto& [rows, depth, columns] : others)
      if (!check(RtfProduct{rows, depth, columns, left, right, rounded})) return 1;
    // several pieces of both factors; split numbers would take six times as long where tiles are emulated
    if (rounded && !check(RtfProduct{2090, 3, 650, left, right, rounded})) return 1;
  }
  std::puts("good");
  return 0;
}
