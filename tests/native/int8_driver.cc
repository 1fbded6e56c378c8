// Products with matrices of int8 on arrays of exactly the size that they need, which sanitizers or guards watch; equal
// bit by bit to plain loops, for any number of threads.
#include <cstring>

#include "driver.h"
#include "int8/int8.h"

namespace {

#if defined(__SANITIZE_ADDRESS__)
using Bytes = std::vector<uint8_t>;
#else
using Bytes = std::vector<uint8_t, BeforeGuard<uint8_t>>;
#endif

struct Case {
  int64_t rows, depth, columns;
  bool extreme;  // numbers of the largest size and of one sign, for which 16 bits are too few first
};

Array expected(const Case& c, const Array& x, const std::vector<int>& w, const Array& scales) {
  Array y(c.rows * c.columns);
  for (int64_t row = 0; row < c.rows; ++row) {
    const float* of_row = x.data() + row * c.depth;
    float largest = 0;
    for (int64_t k = 0; k < c.depth; ++k) largest = std::fmax(largest, std::fabs(of_row[k]));
    for (int64_t column = 0; column < c.columns; ++column) {
      int32_t sum = 0;
      const float factor = 127.0f / largest;
      for (int64_t k = 0; k < c.depth && largest > 0; ++k)
        sum += static_cast<int32_t>(std::nearbyint(of_row[k] * factor)) * w[k * c.columns + column];
      y[row * c.columns + column] = static_cast<float>(sum) * (largest / 127.0f * scales[column]);
    }
  }
  return y;
}

bool check(const Case& c) {
  Array x = random_array(c.rows * c.depth), scales = random_array(c.columns);
  std::vector<int> w(c.depth * c.columns);
  for (int& number : w) number = c.extreme ? 127 : std::rand() % 255 - 127;
  if (c.extreme) std::fill(x.begin(), x.end(), 1.5f);
  if (c.rows > 2) std::fill(x.begin() + c.depth, x.begin() + 2 * c.depth, 0.0f);
  Bytes stored(rtf_int8_matrix_size(c.depth, c.columns), 128);
  const int64_t groups = (c.depth + 3) / 4;
  for (int64_t k = 0; k < c.depth; ++k)
    for (int64_t column = 0; column < c.columns; ++column)
      stored[((column / 16 * groups + k / 4) * 16 + column % 16) * 4 + k % 4] =
          static_cast<uint8_t>(w[k * c.columns + column] + 128);
  const Array wanted = expected(c, x, w, scales);
  bool good = true;
  for (int n_threads : {1, 2, 5}) {
    Array y(c.rows * c.columns, NAN), scratch(rtf_int8_scratch_size(c.rows, c.depth) / 4, NAN);
    const RtfThreads threads{run_threads, nullptr, n_threads};
    const RtfAfterProduct nothing{nullptr, nullptr, 0}, twice{nullptr, y.data(), 0};
    rtf_int8_product_f32(c.rows, c.depth, c.columns, x.data(), stored.data(), scales.data(), &nothing, y.data(),
                         scratch.data(), &threads);
    good &= y.empty() || std::memcmp(y.data(), wanted.data(), y.size() * sizeof(float)) == 0;
    rtf_int8_product_f32(c.rows, c.depth, c.columns, x.data(), stored.data(), scales.data(), &twice, y.data(),
                         scratch.data(), &threads);
    for (size_t i = 0; i < y.size(); ++i) good &= std::fabs(y[i] - 2 * wanted[i]) <= 1e-6f * std::fabs(wanted[i]);
  }
  if (!good) std::printf("wrong: %ld x %ld x %ld\n", long(c.rows), long(c.depth), long(c.columns));
  return good;
}

}  // namespace

int main() {
  for (int64_t rows : {0, 1, 3, 6, 7, 13})
    for (int64_t depth : {1, 4, 30, 257})
      for (int64_t columns : {1, 8, 16, 24, 64, 65, 150})
        if (!check({rows, depth, columns, depth == 30})) return 1;
  for (const Case& c : {Case{5, 700, 300, false},
                        {400, 60, 70, false},
                        {2, 130'000, 20, true},
                        {40, 1500, 17, true},
                        {20, 64, 48, false},
                        {33, 130, 150, false},
                        {66, 192, 80, false},
                        {7, 130'000, 40, true}})
    if (!check(c)) return 1;
  std::puts("good");
  return 0;
}
