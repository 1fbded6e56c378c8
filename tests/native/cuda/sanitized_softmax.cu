// Runs the GPU kernel of the cross entropy over many labels on arrays of exactly its size, for the sanitizers to watch.
#include "../driver.h"
#include "softmax/softmax_cuda.cu"

int main() {
  for (const int64_t labels : {1, 31, 256, 257, 600}) {
    const int64_t frames = 3;
    const RtfSoftmaxCe shape{frames, labels, 0.9f, 0.1f / static_cast<float>(labels), 0.2f, 1.5f};
    Array z = random_array(frames * labels), gradient(z.size()), values(frames), errors(frames);
    const Array bias = random_array(labels);
    const std::vector<int32_t> target = {0, static_cast<int32_t>(labels - 1), static_cast<int32_t>(labels / 2)};
    for (float* to : {gradient.data(), static_cast<float*>(nullptr), z.data()}) {
      const char* error = rtf_softmax_ce_cuda_f32(&shape, z.data(), bias.data(), target.data(), values.data(),
                                                  errors.data(), to, rtf::emulation::stream());
      if (error != nullptr) return std::printf("%ld labels: %s\n", long(labels), error), 1;
    }
    if (!finite(joined({&z, &gradient, &values, &errors}))) return std::puts("not finite"), 1;
  }
  std::puts("good");
}
