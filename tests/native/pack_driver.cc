// Runs packing on random sizes, for the sanitizers: the same for any number of threads, and back again.
#include <cstdio>

#include "driver.h"
#include "pack/pack.h"

int main() {
  const RtfThreads alone = {run_threads, nullptr, 1}, three = {run_threads, nullptr, 3};
  for (int seed = 1; seed <= 150; ++seed) {
    std::srand(seed);
    const bool large = seed % 50 == 0;  // enough for several threads
    RtfPadded shape = {large ? 9 : std::rand() % 6, large ? 80 : std::rand() % 20, large ? 131 : 1 + std::rand() % 40};
    std::vector<int32_t> lengths;
    for (int64_t b = 0; b < shape.batch; ++b) lengths.push_back(std::rand() % (shape.frames + 4) - 2);
    shape.lengths = lengths.data();
    const int64_t valid = rtf_valid_frames(&shape);
    const Array x = random_array(shape.batch * shape.frames * shape.width);
    std::vector<int64_t> rows(valid);
    rtf_packed_rows(&shape, rows.data());
    Array all[2];
    for (int i : {0, 1}) {
      Array packed(valid * shape.width), padded(x.size());
      rtf_pack_f32(&shape, x.data(), packed.data(), i ? &three : &alone);
      rtf_unpack_f32(&shape, packed.data(), padded.data(), i ? &three : &alone);
      all[i] = joined({&packed, &padded});
      for (int64_t row = 0; row < valid; ++row)
        for (int64_t u = 0; u < shape.width; ++u) {
          const int64_t at = rows[row] * shape.width + u;
          if (packed[row * shape.width + u] != x[at] || padded[at] != x[at])
            return std::printf("case %d: row %d is wrong\n", seed, static_cast<int>(row)), 1;
        }
    }
    if (!finite(all[0]) || all[0] != all[1]) return std::printf("case %d is wrong\n", seed), 1;
  }
  std::puts("good");
}
