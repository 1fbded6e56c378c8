// Products with matrices of bfloat16 on arrays of exactly the size that they need, which sanitizers or guards watch;
// against sums in double, for any number of threads.
#include <cstring>

#include "bfloat16/bfloat16.h"
#include "driver.h"

namespace {

#if defined(__SANITIZE_ADDRESS__)
using Numbers = std::vector<uint16_t>;
#else
using Numbers = std::vector<uint16_t, BeforeGuard<uint16_t>>;
#endif

struct Case {
  int64_t rows, depth, columns;
};

uint16_t rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits += 0x7fff + (bits >> 16 & 1);
  return static_cast<uint16_t>(bits >> 16);
}

double widened(uint16_t number) {
  const uint32_t bits = static_cast<uint32_t>(number) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

bool check(const Case& c) {
  const Array x = random_array(c.rows * c.depth), w = random_array(c.depth * c.columns);
  Numbers stored(rtf_bfloat16_matrix_size(c.depth, c.columns), 0);
  const int64_t groups = (c.depth + 1) / 2;
  for (int64_t k = 0; k < c.depth; ++k)
    for (int64_t column = 0; column < c.columns; ++column)
      stored[((column / 16 * groups + k / 2) * 16 + column % 16) * 2 + k % 2] = rounded(w[k * c.columns + column]);
  for (int n_threads : {1, 2, 5}) {
    Array y(c.rows * c.columns, NAN), scratch((rtf_bfloat16_scratch_size(c.rows, c.depth) + 3) / 4, NAN);
    const RtfThreads threads{run_threads, nullptr, n_threads};
    rtf_bfloat16_product_f32(c.rows, c.depth, c.columns, x.data(), stored.data(), y.data(), scratch.data(), &threads);
    for (int64_t row = 0; row < c.rows; ++row)
      for (int64_t column = 0; column < c.columns; ++column) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < c.depth; ++k) {
          const double product = widened(rounded(x[row * c.depth + k])) * widened(rounded(w[k * c.columns + column]));
          sum += product, size += std::fabs(product);
        }
        if (!(std::fabs(y[row * c.columns + column] - sum) <= 1e-6 * size + 1e-30)) {
          std::printf("wrong: [%ld, %ld] of %ld x %ld x %ld: %g, not %g\n", long(row), long(column), long(c.rows),
                      long(c.depth), long(c.columns), double(y[row * c.columns + column]), sum);
          return false;
        }
      }
  }
  return true;
}

}  // namespace

int main() {
  for (int64_t rows : {0, 1, 3, 6, 7, 13, 20, 33})
    for (int64_t depth : {1, 2, 30, 129})
      for (int64_t columns : {1, 8, 16, 24, 65, 150})
        if (!check({rows, depth, columns})) return 1;
  for (const Case& c : {Case{5, 700, 300}, {400, 60, 70}, {2, 9000, 20}, {40, 1500, 17}})
    if (!check(c)) return 1;
  std::puts("good");
  return 0;
}
