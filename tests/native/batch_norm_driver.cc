// Runs batch normalisation on random sizes, for the sanitizers: the same for any number of threads, and in place; the
// moments are those of the valid rows.
#include <cstdio>

#include "activate/batch_norm.h"
#include "driver.h"

namespace {

// Whether mean and variance are those of the valid rows, computed in double precision.
bool are_moments(const RtfBatchNorm& s, const Array& x, const Array& mean, const Array& variance) {
  for (int64_t u = 0; u < s.width; ++u) {
    double count = 0, sum = 0, squares = 0;
    for (int64_t row = 0; row < s.rows; ++row)
      if (!s.mask || s.mask[row]) count += 1, sum += x[row * s.width + u];
    const double expected = count ? sum / count : 0;
    for (int64_t row = 0; row < s.rows; ++row)
      if (!s.mask || s.mask[row]) squares += std::pow(x[row * s.width + u] - expected, 2);
    if (std::fabs(mean[u] - expected) > 1e-5 || std::fabs(variance[u] - (count ? squares / count : 0)) > 1e-5)
      return false;
  }
  return true;
}

}  // namespace

int main() {
  const RtfThreads alone = {run_threads, nullptr, 1}, three = {run_threads, nullptr, 3};
  for (int seed = 1; seed <= 150; ++seed) {
    std::srand(seed);
    const bool large = seed % 50 == 0;  // enough for several threads
    RtfBatchNorm shape{large ? 300 : std::rand() % 70, large ? 331 : 1 + std::rand() % 90, 1e-3f, seed % 6, nullptr};
    std::vector<uint8_t> mask(shape.rows);
    for (uint8_t& valid : mask) valid = std::rand() % 20 < seed % 20;  // none in some cases, all in none
    if (seed % 3) shape.mask = mask.data();
    const Array x = random_array(shape.rows * shape.width), dy = random_array(shape.rows * shape.width);
    const Array scale = random_array(shape.width), shift = random_array(shape.width);
    const float *scales = seed % 5 ? scale.data() : nullptr, *shifts = seed % 4 ? shift.data() : nullptr;
    Array all[2];
    for (int i : {0, 1}) {
      const RtfThreads* threads = i ? &three : &alone;
      Array y = x, dx = dy, mean(shape.width), variance(shape.width), dscale(shape.width), dshift(shape.width);
      Array scratch(rtf_batch_norm_scratch_size(&shape));
      rtf_batch_moments_f32(&shape, x.data(), mean.data(), variance.data(), scratch.data(), threads);
      rtf_batch_norm_f32(&shape, i ? y.data() : x.data(), mean.data(), variance.data(), scales, shifts, y.data(),
                         threads);
      rtf_batch_norm_grad_f32(&shape, i ? dx.data() : dy.data(), x.data(), mean.data(), variance.data(), scales, shifts,
                              dx.data(), dscale.data(), dshift.data(), scratch.data(), threads);
      if (!are_moments(shape, x, mean, variance)) return std::printf("the moments of case %d are wrong\n", seed), 1;
      all[i] = joined({&y, &mean, &variance, &dx, &dscale, &dshift});
    }
    if (!finite(all[0]) || all[0] != all[1]) return std::printf("case %d is wrong\n", seed), 1;
  }
  std::puts("good");
}
