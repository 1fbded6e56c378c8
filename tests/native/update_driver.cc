// Runs all update rules on parameters of random sizes, for the sanitizers: the same for any number of threads.
#include <cstdio>

#include "driver.h"
#include "update/update.h"

int main() {
  const RtfThreads alone = {run_threads, nullptr, 1}, three = {run_threads, nullptr, 3};
  const float numbers[kRtfMaxNumbers] = {0.1f, 0.5f, 0.6f, 0.9f, 0.99f, 1e-3f, 1.0f, 0.5f};
  for (int seed = 1; seed <= 96; ++seed) {
    std::srand(seed);
    const float factor = seed % 3 ? 0.7f : 1.0f;
    const int rule = seed % RTF_RULES, count = std::rand() % 9;
    std::vector<Array> arrays[2];
    double norms[2];
    for (int i : {0, 1}) {
      const RtfThreads* threads = i ? &three : &alone;
      std::srand(seed);
      std::vector<RtfParameter> parameters;
      std::vector<const float*> gradients;
      std::vector<int64_t> sizes;
      std::vector<Array>& all = arrays[i];
      for (int p = 0; p < count; ++p) {
        const int64_t size = seed > 80 ? 30000 + std::rand() % 5000 : std::rand() % 70;
        RtfParameter parameter = {size, size % 3 ? size : size / 3, nullptr, nullptr, {}};
        for (int k = 0; k < 2 + rtf_update_slots(rule); ++k) {
          all.push_back(random_array(size));
          if (k >= 2)
            for (float& value : all.back()) value = 1 + std::fabs(value);
          if (k >= 2) parameter.slots[k - 2] = all.back().data();
        }
        parameter.gradient = all[all.size() - 1 - rtf_update_slots(rule)].data();
        parameter.value = all[all.size() - 2 - rtf_update_slots(rule)].data();
        parameters.push_back(parameter);
        gradients.push_back(parameter.gradient);
        sizes.push_back(size);
      }
      norms[i] = rtf_sum_of_squares_f32(gradients.data(), sizes.data(), count, threads);
      rtf_update_f32(rule, numbers, &factor, parameters.data(), count, threads);
    }
    bool good = arrays[0] == arrays[1] && norms[0] == norms[1] && std::isfinite(norms[0]);
    for (const Array& array : arrays[0]) good &= finite(array) || rule == RTF_RMSPROP_CENTERED;
    if (!good) return std::printf("case %d is wrong\n", seed), 1;
  }
  std::puts("good");
}
