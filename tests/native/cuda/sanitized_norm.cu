// Runs the GPU kernels of layer normalisation on arrays of exactly their size, for the sanitizers to watch.
#include "../driver.h"
#include "norm/norm_cuda.cu"

int main() {
  const int64_t widths[] = {1, 7, 130, 512, 513, 600, 4097};
  for (int seed = 0; seed < 14; ++seed) {
    std::srand(seed);
    const int64_t width = widths[seed % 7];
    const RtfNorm shape = {width > 512 ? seed % 4 : std::rand() % 40, width, 1e-3f};
    const Array x = random_array(shape.rows * width), dy = random_array(shape.rows * width);
    const Array scale = random_array(width), bias = random_array(width);
    const float* scales = seed % 3 ? scale.data() : nullptr;
    const float* biases = seed % 4 ? bias.data() : nullptr;
    Array y(x.size()), mean(shape.rows), factor(shape.rows), dx(x.size()), dscale(width), dbias(width);
    Array scratch(rtf_norm_cuda_scratch_size(&shape));
    const char* errors[] = {
        rtf_norm_cuda_f32(&shape, x.data(), scales, biases, y.data(), mean.data(), factor.data(),
                          rtf::emulation::stream()),
        rtf_norm_grad_cuda_f32(&shape, dy.data(), x.data(), scales, mean.data(), factor.data(), dx.data(),
                               dscale.data(), dbias.data(), scratch.data(), rtf::emulation::stream()),
        finite(joined({&y, &mean, &factor, &dx, &dscale, &dbias})) ? nullptr : "not finite",
    };
    for (const char* error : errors)
      if (error != nullptr) return std::printf("case %d: %s\n", seed, error), 1;
  }
  std::puts("good");
}
