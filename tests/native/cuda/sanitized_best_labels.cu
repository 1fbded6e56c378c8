// Runs the GPU kernel that finds the best labels on arrays of exactly their size, for the sanitizers to watch.
#include "../driver.h"
#include "search/best_labels_cuda.cu"

int main() {
  for (int seed = 0; seed < 8; ++seed) {
    std::srand(seed);
    const int64_t labels = 1 + std::rand() % (seed % 4 ? 400 : 3000), count = 1 + std::rand() % labels;
    const int64_t rows = std::rand() % 3, wanted = std::min<int64_t>(count, RTF_MOST_BEST_LABELS);
    Array x = random_array(rows * labels), best(rows * wanted), log_sums(rows);
    if (seed % 2)
      for (float& value : x) value = std::round(value * 2);
    std::vector<int32_t> indices(rows * wanted);
    const char* error = rtf_best_labels_cuda_f32(rows, labels, wanted, x.data(), best.data(), indices.data(),
                                                 log_sums.data(), rtf::emulation::stream());
    if (error != nullptr) return std::printf("case %d: %s\n", seed, error), 1;
    for (int32_t index : indices)
      if (index < 0 || index >= labels) return std::printf("case %d: no such label\n", seed), 1;
    if (!finite(joined({&best, &log_sums}))) return std::printf("case %d: not finite\n", seed), 1;
  }
  std::puts("good");
}
