// Runs bias, activation and dropout on random sizes, for the sanitizers: the same for any number of threads, in place
// too, and what is dropped in a part of an array is what is dropped in the whole.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "activate/activate.h"
#include "driver.h"

int main() {
  const RtfThreads alone = {run_threads, nullptr, 1}, three = {run_threads, nullptr, 3};
  for (int seed = 1; seed <= 150; ++seed) {
    std::srand(seed);
    const bool large = seed % 50 == 0;  // enough for several threads
    const int64_t rows = large ? 300 : std::rand() % 70, width = large ? 331 : 1 + std::rand() % 90;
    const float rate = seed % 3 ? 0.25f : 0.0f;
    const uint64_t key = 77u * seed, high = seed % 2 ? ~0ull : 5;  // a counter that overflows
    RtfActivate shape = {rows, width, seed % 6, rate, 1 / (1 - rate), key, {high, 3}};
    const Array x = random_array(rows * width), bias = random_array(width), residual = random_array(rows * width);
    Array factors = random_array(width);
    for (float& factor : factors) factor = std::fabs(factor);
    const Array dy = random_array(rows * width);
    Array y(x.size()), dx(x.size()), dbias(width), scratch(rtf_activate_scratch_size(&shape));
    rtf_activate_f32(&shape, x.data(), bias.data(), factors.data(), residual.data(), y.data(), &alone);
    rtf_activate_grad_f32(&shape, dy.data(), x.data(), 0, bias.data(), factors.data(), dx.data(), dbias.data(),
                          scratch.data(), &alone);
    Array y2 = x, dx2 = dy, dbias2(width);
    rtf_activate_f32(&shape, y2.data(), bias.data(), factors.data(), residual.data(), y2.data(), &three);
    rtf_activate_grad_f32(&shape, dx2.data(), x.data(), 0, bias.data(), factors.data(), dx2.data(), dbias2.data(),
                          scratch.data(), &three);
    if (!finite(y) || !finite(dx) || y != y2 || dx != dx2 || dbias != dbias2)
      return std::printf("case %d is wrong\n", seed), 1;
    std::vector<int64_t> numbers;  // each second row, the last one first
    for (int64_t row = rows - 1; row >= 0; row -= 2) numbers.push_back(row);
    RtfActivate some = shape;
    some.rows = numbers.size();
    some.numbers = numbers.data();
    Array part(some.rows * width), residuals(some.rows * width);
    for (int64_t row = 0; row < some.rows; ++row) {
      std::copy_n(x.data() + numbers[row] * width, width, part.data() + row * width);
      std::copy_n(residual.data() + numbers[row] * width, width, residuals.data() + row * width);
    }
    rtf_activate_f32(&some, part.data(), bias.data(), factors.data(), residuals.data(), part.data(), &three);
    for (int64_t row = 0; row < some.rows; ++row)
      if (std::memcmp(part.data() + row * width, y.data() + numbers[row] * width, width * sizeof(float)))
        return std::printf("case %d: row %d of some is wrong\n", seed, static_cast<int>(row)), 1;
    Array plain(x.size());
    shape.function = RTF_RELU;
    rtf_activate_f32(&shape, x.data(), nullptr, nullptr, nullptr, plain.data(), &three);
    rtf_activate_grad_f32(&shape, dy.data(), plain.data(), 1, nullptr, nullptr, dx.data(), nullptr, nullptr, &three);
    rtf_activate_grad_f32(&shape, dy.data(), x.data(), 0, nullptr, nullptr, dx2.data(), nullptr, nullptr, &three);
    if (dx != dx2) return std::printf("case %d: the gradient of the output differs\n", seed), 1;
    if (width % 2 == 0) {
      Array gated(rows * width / 2), dgated(x.size());
      rtf_gate_f32(rows, width / 2, seed % 6, seed / 6 % 6, x.data(), gated.data(), &three);
      rtf_gate_grad_f32(rows, width / 2, seed % 6, seed / 6 % 6, x.data(), gated.data(), dgated.data(), &three);
      if (!finite(gated) || !finite(dgated)) return std::printf("case %d: gates\n", seed), 1;
    }
  }
  std::puts("good");
}
