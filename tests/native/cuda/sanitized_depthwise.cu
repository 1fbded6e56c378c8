// Runs the GPU kernels of depthwise convolutions on arrays of exactly their size, for the sanitizers to watch.
#include <algorithm>

#include "../driver.h"
#include "depthwise/depthwise_cuda.cu"

int main() {
  for (int seed = 0; seed < 16; ++seed) {
    std::srand(seed);
    const auto below = [](int64_t n) { return std::rand() % n; };
    const int64_t taps = seed % 4 ? 1 + below(12) : 33 + below(20), dilation = 1 + below(3);
    const int64_t reach = (taps - 1) * dilation, left = below(reach + 3), right = below(reach + 3);
    RtfDepthwise s{below(4), seed % 5 ? below(20) : 70, 0, 1 + below(seed % 3 ? 5 : 40), taps, dilation, left};
    s.out_frames = std::max<int64_t>(0, s.frames + left + right - reach);
    const Array x = random_array(s.batch * s.frames * s.channels), w = random_array(taps * s.channels);
    const Array bias = random_array(s.channels), dy = random_array(s.batch * s.out_frames * s.channels);
    Array y(dy.size()), dx(x.size()), dw(w.size()), dbias(s.channels), scratch(rtf_depthwise_cuda_scratch_size(&s));
    const char* errors[] = {
        rtf_depthwise_cuda_f32(&s, x.data(), w.data(), seed % 2 ? bias.data() : nullptr, y.data(),
                               rtf::emulation::stream()),
        rtf_depthwise_grad_cuda_f32(&s, dy.data(), x.data(), w.data(), dx.data(), dw.data(), dbias.data(),
                                    scratch.data(), rtf::emulation::stream()),
        finite(joined({&y, &dx, &dw, &dbias})) ? nullptr : "not finite",
    };
    for (const char* error : errors)
      if (error != nullptr) return std::printf("case %d: %s\n", seed, error), 1;
  }
  std::puts("good");
}
