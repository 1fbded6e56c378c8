// Runs the LSTM kernels over many sizes on arrays of exactly the size that they need, for the sanitizers to watch.
#include "lstm/lstm.h"

#include <cstdio>
#include <vector>

#include "driver.h"

namespace {

bool run(int64_t T, int64_t B, int64_t H, int reverse, int n_threads) {
  std::vector<int32_t> lengths(B);
  for (int64_t b = 0; b < B; ++b) lengths[b] = b == 0 ? T : std::rand() % (T + 1);
  const RtfLstmShape shape{T, B, H, lengths.data(), reverse};
  const RtfThreads threads{run_threads, nullptr, n_threads};
  const std::vector<float> z = random_array(T * B * 4 * H), r = random_array(H * 4 * H), state = random_array(B * H);
  std::vector<float> h(T * B * H), c(T * B * H), gates(T * B * 4 * H), c_last(B * H), h_last(B * H);
  std::vector<float> scratch(rtf_lstm_scratch_size(H)), dz(T * B * 4 * H), dc0(B * H), dh0(B * H);
  rtf_lstm_forward_f32(&shape, z.data(), r.data(), state.data(), state.data(), h.data(), c.data(), gates.data(),
                       c_last.data(), h_last.data(), scratch.data(), &threads);
  rtf_lstm_backward_f32(&shape, r.data(), state.data(), c.data(), gates.data(), h.data(), c_last.data(), h_last.data(),
                        dz.data(), dc0.data(), dh0.data(), scratch.data(), &threads);
  return finite(h) && finite(dz) && finite(dc0) && finite(dh0);
}

}  // namespace

int main() {
  for (int64_t T : {0, 1, 2, 5})
    for (int64_t B : {0, 1, 3, 8, 13})
      for (int64_t H : {1, 7, 16, 33, 64})
        for (int reverse : {0, 1})
          if (!run(T, B, H, reverse, 1 + int(H % 3))) {
            std::printf("not finite: T %ld B %ld H %ld\n", long(T), long(B), long(H));
            return 1;
          }
  std::puts("good");
}
