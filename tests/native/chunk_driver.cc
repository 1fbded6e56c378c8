// Runs the kernels of the chunks on random sizes, for the sanitizers; there and back gives the frames that chunks have.
#include <cstdio>

#include "chunk/chunk.h"
#include "driver.h"

int main() {
  const RtfThreads threads = {run_threads, nullptr, 3};
  for (int seed = 1; seed <= 200; ++seed) {
    std::srand(seed);
    RtfChunks shape = {
        std::rand() % 30, std::rand() % 5, std::rand() % 9, 1 + std::rand() % 9, 1 + std::rand() % 9, 1, 0};
    if (shape.frames > shape.size) shape.count = (shape.frames - shape.size + shape.step - 1) / shape.step + 1;
    const Array x = random_array(shape.frames * shape.batch * shape.width);
    Array chunks(shape.size * shape.batch * shape.count * shape.width), back(x.size());
    rtf_chunk_f32(&shape, x.data(), chunks.data(), &threads);
    shape.mean = 1;
    rtf_unchunk_f32(&shape, chunks.data(), back.data(), &threads);
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t t = i / (shape.batch * shape.width);
      const bool is_in_one = shape.step <= shape.size || t % shape.step < shape.size;
      if (std::fabs(back[i] - (is_in_one ? x[i] : 0.0f)) > 1e-6f) return std::printf("case %d is wrong\n", seed), 1;
    }
  }
  std::puts("good");
}
