// Runs the GPU kernels of attention in a search on arrays of exactly their size, for the sanitizers to watch.
#include "../driver.h"
#include "search/beam_attention_cuda.cu"

int main() {
  for (int seed = 0; seed < 12; ++seed) {
    std::srand(seed);
    const int64_t most = seed % 3 ? 6 : 140;  // frames: fewer than a tile, or more
    const RtfBeamAttention s = {1 + std::rand() % 3, std::rand() % most, 1 + std::rand() % 2, 1 + std::rand() % 9,
                                1 + std::rand() % (seed % 4 ? 9 : 140)};
    const RtfOnce once = {std::rand() % 3, std::rand() % 6, std::rand() % most, s.heads, s.key};
    const Array qkv = random_array(s.entries * s.heads * (2 * s.key + s.value));
    const Array shift = random_array((s.steps + 1) * s.key);
    const Array keys_before = random_array(s.steps * s.entries * s.heads * s.key);
    const Array values_before = random_array(s.steps * s.entries * s.heads * s.value);
    Array keys((s.steps + 1) * s.entries * s.heads * s.key), values((s.steps + 1) * s.entries * s.heads * s.value);
    std::copy(keys_before.begin(), keys_before.end(), keys.begin());
    std::copy(values_before.begin(), values_before.end(), values.begin());
    std::vector<int32_t> rows(s.entries * s.steps), next_rows(s.entries * (s.steps + 1));
    for (int32_t& row : rows) row = std::rand() % s.entries;
    const bool copies = seed % 2;
    Array y(s.entries * s.heads * s.value);
    const Array queries = random_array(once.batch * once.beam * once.heads * once.size);
    const Array frames = random_array(once.batch * once.frames * once.heads * once.size);
    const Array weighted = random_array(once.batch * once.frames * once.heads * s.value);
    std::vector<int32_t> lengths(once.batch * once.beam);
    for (int32_t& length : lengths) length = std::rand() % (most + 3) - 1;
    Array attended(once.batch * once.beam * once.heads * s.value);
    const char* errors[] = {
        rtf_beam_attention_cuda_f32(&s, qkv.data(), rows.data(), seed % 2 ? nullptr : shift.data(),
                                    copies ? keys_before.data() : keys.data(),
                                    copies ? values_before.data() : values.data(), keys.data(), values.data(), y.data(),
                                    next_rows.data(), rtf::emulation::stream()),
        rtf_once_attention_cuda_f32(&once, s.value, 0.5f, queries.data(), frames.data(), weighted.data(),
                                    seed % 4 ? lengths.data() : nullptr, attended.data(), rtf::emulation::stream()),
        finite(joined({&y, &keys, &values, &attended})) ? nullptr : "not finite",
    };
    for (const char* error : errors)
      if (error != nullptr) return std::printf("case %d: %s\n", seed, error), 1;
  }
  std::puts("good");
}
