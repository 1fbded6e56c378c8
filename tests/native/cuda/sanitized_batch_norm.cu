// Runs the GPU kernels of batch normalisation on arrays of exactly their size, for the sanitizers to watch.
#include "../driver.h"
#include "activate/batch_norm_cuda.cu"

int main() {
  for (int seed = 0; seed < 18; ++seed) {
    std::srand(seed);
    const int64_t rows = seed % 5 == 0 ? 40 : std::rand() % 9, width = 1 + std::rand() % 150;
    std::vector<uint8_t> mask(rows);
    for (uint8_t& valid : mask) valid = std::rand() % 9 < seed % 9;  // none in some cases
    const RtfBatchNorm s{rows, width, 1e-2f, seed % 6, seed % 4 ? mask.data() : nullptr};
    const Array x = random_array(rows * width), dy = random_array(rows * width);
    const Array scales = random_array(width), shifts = random_array(width);
    const float *scale = seed % 3 ? scales.data() : nullptr, *shift = seed % 2 ? shifts.data() : nullptr;
    Array mean(width), variance(width), y(x.size()), dx(x.size()), dscale(width), dshift(width);
    Array scratch(rtf_batch_norm_cuda_scratch_size(&s));
    const char* errors[] = {
        rtf_batch_moments_cuda_f32(&s, x.data(), mean.data(), variance.data(), scratch.data(),
                                   rtf::emulation::stream()),
        rtf_batch_norm_cuda_f32(&s, x.data(), mean.data(), variance.data(), scale, shift, y.data(),
                                rtf::emulation::stream()),
        rtf_batch_norm_grad_cuda_f32(&s, dy.data(), x.data(), mean.data(), variance.data(), scale, shift, dx.data(),
                                     dscale.data(), dshift.data(), scratch.data(), rtf::emulation::stream()),
        finite(joined({&mean, &variance, &y, &dx, &dscale, &dshift})) ? nullptr : "not finite",
    };
    for (const char* error : errors)
      if (error != nullptr) return std::printf("case %d: %s\n", seed, error), 1;
  }
  std::puts("good");
}
