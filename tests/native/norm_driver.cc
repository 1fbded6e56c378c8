// Runs layer normalisation on random sizes, for the sanitizers: the same for any number of threads, and in place.
#include <cstdio>

#include "driver.h"
#include "norm/norm.h"

int main() {
  const RtfThreads alone = {run_threads, nullptr, 1}, three = {run_threads, nullptr, 3};
  for (int seed = 1; seed <= 150; ++seed) {
    std::srand(seed);
    const bool large = seed % 50 == 0;  // enough for several threads
    const RtfNorm shape = {large ? 300 : std::rand() % 70, large ? 331 : 1 + std::rand() % 90, 1e-3f};
    const Array x = random_array(shape.rows * shape.width), dy = random_array(shape.rows * shape.width);
    const Array scale = random_array(shape.width), bias = random_array(shape.width);
    const float* scales = seed % 3 ? scale.data() : nullptr;
    const float* biases = seed % 4 ? bias.data() : nullptr;
    Array all[2];
    for (int i : {0, 1}) {
      const RtfThreads* threads = i ? &three : &alone;
      Array y = x, mean(shape.rows), factor(shape.rows), dx = dy, dscale(shape.width), dbias(shape.width);
      Array scratch(rtf_norm_scratch_size(&shape));
      rtf_norm_f32(&shape, i ? y.data() : x.data(), scales, biases, y.data(), mean.data(), factor.data(), threads);
      rtf_norm_grad_f32(&shape, i ? dx.data() : dy.data(), x.data(), scales, mean.data(), factor.data(), dx.data(),
                        dscale.data(), dbias.data(), scratch.data(), threads);
      all[i] = joined({&y, &mean, &factor, &dx, &dscale, &dbias});
    }
    if (!finite(all[0]) || all[0] != all[1]) return std::printf("case %d is wrong\n", seed), 1;
  }
  std::puts("good");
}
