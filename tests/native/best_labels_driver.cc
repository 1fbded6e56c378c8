// Runs the kernels that find the best labels on random sizes, for the sanitizers; any number of threads has to give the
// same.
#include "driver.h"
#include "search/best_labels.h"

int main() {
  for (int seed = 0; seed < 40; ++seed) {
    std::srand(seed);
    const int64_t labels = 1 + std::rand() % 400, count = 1 + std::rand() % labels, rows = std::rand() % 6;
    const Array x = random_array(rows * labels);
    Array results[2];
    for (int n_threads : {1, 3}) {
      const RtfThreads threads = {run_threads, nullptr, n_threads};
      Array best(rows * count), log_sums(rows);
      std::vector<int32_t> indices(rows * count);
      rtf_best_labels_f32(rows, labels, count, x.data(), best.data(), indices.data(), log_sums.data(), &threads);
      results[n_threads == 3] = joined({&best, &log_sums});
      for (int32_t index : indices)
        if (index < 0 || index >= labels) return std::printf("case %d: no such label\n", seed), 1;
    }
    if (!finite(results[0]) || results[0] != results[1]) return std::printf("case %d is wrong\n", seed), 1;
  }
  std::puts("good");
}
