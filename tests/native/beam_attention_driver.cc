// Runs attention in a search on random sizes, for the sanitizers; any number of threads has to give the same.
#include <algorithm>
#include <cstdio>

#include "driver.h"
#include "search/attention.h"
#include "search/once.h"

int main() {
  for (int seed = 1; seed <= 60; ++seed) {
    std::srand(seed);
    const RtfBeamAttention s = {1 + std::rand() % 30, std::rand() % 9, 1 + std::rand() % 3, 1 + std::rand() % 40,
                                1 + std::rand() % 40};
    const RtfOnce once = {std::rand() % 4, std::rand() % 5, std::rand() % 7, s.heads, s.key};
    const Array qkv = random_array(s.entries * s.heads * (2 * s.key + s.value));
    const Array keys = random_array((s.steps + 1) * s.entries * s.heads * s.key);
    const Array shift = random_array((s.steps + 1) * s.key);
    const Array values = random_array((s.steps + 1) * s.entries * s.heads * s.value);
    const Array frames = random_array(once.batch * once.frames * once.heads * once.size);
    const Array queries = random_array(once.batch * once.beam * once.heads * once.size);
    std::vector<int32_t> of_frame(s.entries * s.steps);
    for (int32_t& row : of_frame) row = std::rand() % s.entries;
    Array results[2];
    for (int n_threads : {1, 3}) {
      const RtfThreads threads = {run_threads, nullptr, n_threads};
      Array next_keys = keys, next_values = values, y(s.entries * s.heads * s.value);
      rtf_beam_attention_f32(&s, qkv.data(), of_frame.data(), seed % 4 ? nullptr : shift.data(), next_keys.data(),
                             next_values.data(), y.data(), &threads);
      Array attended(queries.size());
      const std::vector<int32_t> lengths(once.batch * once.beam, seed % 7);
      rtf_once_attention_f32(&once, once.size, 0.5f, queries.data(), frames.data(), frames.data(),
                             seed % 2 ? lengths.data() : nullptr, attended.data(), &threads);
      results[n_threads == 3] = joined({&y, &next_keys, &next_values, &attended});
    }
    if (!finite(results[0]) || results[0] != results[1]) return std::printf("case %d is wrong\n", seed), 1;
  }
  std::puts("good");
}
