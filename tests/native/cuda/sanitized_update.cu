// Runs the GPU kernels of all update rules on arrays of exactly their size, for the sanitizers to watch.
#include "../driver.h"
#include "update/update_cuda.cu"

int main() {
  const Array numbers = {0.1f, 0.5f, 0.6f, 0.9f, 0.99f, 1e-3f, 1.0f, 0.5f};
  const int with_many[] = {RTF_ADAM, RTF_LAMB, RTF_ADAFACTOR};  // more parameters than there are in a launch
  for (int seed = 0; seed < RTF_RULES + 3; ++seed) {
    std::srand(seed);
    const bool many = seed >= RTF_RULES;
    const int rule = many ? with_many[seed - RTF_RULES] : seed, count = many ? 41 : 3;
    std::vector<Array> all;
    std::vector<RtfParameter> parameters;
    std::vector<const float*> gradients;
    std::vector<int64_t> sizes;
    for (int p = 0; p < count; ++p) {
      const int64_t columns = 1 + std::rand() % 9, rows = many ? 1 : p ? std::rand() % 5 : 4500 / columns;
      RtfParameter parameter = {rows * columns, columns, nullptr, nullptr, {}};
      for (int k = 0; k < 6; ++k) {
        const int64_t of_matrix = k == 2 ? rows : k == 3 ? columns : 0, of_scale = k < 4 ? rows * columns : 1;
        const int64_t size = rule == RTF_ADAFACTOR && k >= 2     ? of_matrix
                             : rule == RTF_SCALED_ADAM && k >= 2 ? of_scale
                                                                 : rows * columns;
        all.push_back(random_array(size));
        for (float& value : all.back()) value = k < 2 ? value : 1 + std::fabs(value);
        (k == 0 ? parameter.value : parameter.slots[k < 2 ? 3 : k - 2]) = all.back().data();
        if (k == 1) parameter.gradient = all.back().data();
      }
      parameters.push_back(parameter);
      gradients.push_back(parameter.gradient);
      sizes.push_back(parameter.size);
    }
    const Array factor(1, 0.7f);
    Array scratch(rtf_update_cuda_scratch_size(rule, parameters.data(), count)), norm(1);
    Array parts(rtf_norm_of_all_cuda_scratch_size(sizes.data(), count));
    const char* errors[] = {
        rtf_norm_of_all_cuda_f32(gradients.data(), sizes.data(), count, norm.data(), parts.data(),
                                 rtf::emulation::stream()),
        rtf_update_cuda_f32(rule, numbers.data(), factor.data(), parameters.data(), count, scratch.data(),
                            rtf::emulation::stream()),
        finite(norm) ? nullptr : "not finite",
    };
    for (const char* error : errors)
      if (error != nullptr) return std::printf("case %d: %s\n", seed, error), 1;
  }
  std::puts("good");
}
