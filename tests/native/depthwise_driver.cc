// Runs depthwise convolutions on random sizes, for the sanitizers: as a plain loop, and the same for any number of
// threads.
#include <algorithm>
#include <cstdio>

#include "depthwise/depthwise.h"
#include "driver.h"

namespace {

int64_t below(int64_t n) { return std::rand() % n; }

// y and the gradients, frame by frame.
Array plain(const RtfDepthwise& s, const Array& x, const Array& w, const float* bias, const Array& dy) {
  Array y(dy.size()), dx(x.size()), dw(w.size()), dbias(s.channels);
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t t = 0; t < s.out_frames; ++t)
      for (int64_t c = 0; c < s.channels; ++c) {
        const int64_t at = (n * s.out_frames + t) * s.channels + c;
        y[at] = bias ? bias[c] : 0;
        dbias[c] += dy[at];
        for (int64_t k = 0; k < s.taps; ++k) {
          const int64_t frame = t + k * s.dilation - s.left, from = (n * s.frames + frame) * s.channels + c;
          if (frame < 0 || frame >= s.frames) continue;
          y[at] += w[k * s.channels + c] * x[from];
          dx[from] += w[k * s.channels + c] * dy[at];
          dw[k * s.channels + c] += x[from] * dy[at];
        }
      }
  return joined({&y, &dx, &dw, &dbias});
}

Array results(const RtfDepthwise& s, const Array& x, const Array& w, const float* bias, const Array& dy,
              const RtfThreads& threads) {
  Array y(dy.size()), dx(x.size()), dw(w.size()), dbias(s.channels);
  Array scratch(rtf_depthwise_scratch_size(&s, threads.n_threads)), sums(rtf_depthwise_sums_size(&s));
  rtf_depthwise_f32(&s, x.data(), w.data(), bias, y.data(), scratch.data(), &threads);
  rtf_depthwise_grad_f32(&s, dy.data(), x.data(), w.data(), dx.data(), dw.data(), dbias.data(), sums.data(),
                         scratch.data(), &threads);
  return joined({&y, &dx, &dw, &dbias});
}

}  // namespace

int main() {
  const RtfThreads alone = {run_threads, nullptr, 1}, three = {run_threads, nullptr, 3};
  for (int seed = 1; seed <= 120; ++seed) {
    std::srand(seed);
    const bool large = seed % 40 == 0;  // enough for several threads
    RtfDepthwise s{
        large ? 5 : below(12), large ? 150 : below(90), 0, large ? 131 : 1 + below(70), 1 + below(12), 1 + below(3), 0};
    const int64_t reach = (s.taps - 1) * s.dilation, left = below(reach + 3), right = below(reach + 3);
    s.left = left;
    s.out_frames = std::max<int64_t>(0, s.frames + left + right - reach);
    const Array x = random_array(s.batch * s.frames * s.channels), w = random_array(s.taps * s.channels);
    const Array bias = random_array(s.channels), dy = random_array(s.batch * s.out_frames * s.channels);
    const float* biases = seed % 3 ? bias.data() : nullptr;
    const Array one = results(s, x, w, biases, dy, alone), expected = plain(s, x, w, biases, dy);
    bool good = one == results(s, x, w, biases, dy, three);
    for (size_t i = 0; i < one.size(); ++i) good &= std::fabs(one[i] - expected[i]) < 1e-3f;
    if (!good) return std::printf("case %d is wrong\n", seed), 1;
  }
  std::puts("good");
}
