// Runs the GPU kernels of activations, dropout and gates on arrays of exactly their size, for the sanitizers to watch.
#include "../driver.h"
#include "activate/activate_cuda.cu"

int main() {
  for (int seed = 0; seed < 24; ++seed) {
    std::srand(seed);
    const int64_t rows = seed % 5 == 0 ? 40 : std::rand() % 9, width = 1 + std::rand() % 150;
    const float rate = seed % 3 ? 0.25f : 0.0f;
    const std::vector<uint64_t> key(1, 77u * seed), counter = {seed % 2 ? ~0ull : 5, 3};
    std::vector<int64_t> numbers(rows, seed);
    const RtfActivate shape = {rows,           width, seed % 6, rate,
                               1 / (1 - rate), 0,     {0, 0},   seed % 4 ? nullptr : numbers.data()};
    const Array x = random_array(rows * width), dy = random_array(rows * width), residual = random_array(rows * width);
    const Array bias = random_array(width), factors = random_array(width);
    Array y(x.size()), dx(x.size()), dbias(width), scratch(rtf_activate_cuda_scratch_size(&shape));
    const uint64_t *k = rate > 0 ? key.data() : nullptr, *c = rate > 0 ? counter.data() : nullptr;
    const float* factor = seed % 2 ? factors.data() : nullptr;
    const float* added = seed / 2 % 2 ? residual.data() : nullptr;
    Array gated(rows * width / 2), dgated(rows * (width / 2 * 2));
    const char* errors[] = {
        rtf_activate_cuda_f32(&shape, k, c, x.data(), bias.data(), factor, added, y.data(), rtf::emulation::stream()),
        rtf_activate_grad_cuda_f32(&shape, k, c, dy.data(), x.data(), 0, bias.data(), factor, dx.data(), dbias.data(),
                                   scratch.data(), rtf::emulation::stream()),
        rtf_gate_cuda_f32(rows, width / 2, seed % 6, seed / 6, x.data(), gated.data(), rtf::emulation::stream()),
        rtf_gate_grad_cuda_f32(rows, width / 2, seed % 6, seed / 6, x.data(), dy.data(), dgated.data(),
                               rtf::emulation::stream()),
        finite(joined({&y, &dx, &dbias, &gated, &dgated})) ? nullptr : "not finite",
    };
    for (const char* error : errors)
      if (error != nullptr) return std::printf("case %d: %s\n", seed, error), 1;
  }
  std::puts("good");
}
