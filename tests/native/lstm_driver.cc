// Runs the LSTM kernels over many sizes on arrays of exactly the size that they need, which sanitizers or guards watch.
#include "driver.h"
#include "lstm/lstm.h"

namespace {

Array results_of(const RtfLstmShape& shape, float scale, int rounded, const RtfThreads& threads) {
  const int64_t T = shape.frames, B = shape.batch, H = shape.units;
  const Array z = random_array_again(T * B * 4 * H), r = random_array(H * 4 * H, scale), state = random_array(B * H);
  Array h(T * B * H), c(T * B * H), gates(T * B * 4 * H), c_last(B * H), h_last(B * H);
  Array scratch(rtf_lstm_scratch_size(&shape, rounded)), dz(T * B * 4 * H), dc0(B * H), dh0(B * H);
  rtf_lstm_forward_f32(&shape, rounded, z.data(), r.data(), state.data(), state.data(), h.data(), c.data(),
                       gates.data(), c_last.data(), h_last.data(), scratch.data(), &threads);
  rtf_lstm_backward_f32(&shape, rounded, r.data(), state.data(), c.data(), gates.data(), h.data(), c_last.data(),
                        h_last.data(), dz.data(), dc0.data(), dh0.data(), scratch.data(), &threads);
  return joined({&h, &c, &gates, &c_last, &h_last, &dz, &dc0, &dh0});
}

Array results(const RtfLstmShape& shape, const RtfThreads& threads) {
  return results_of_forms(shape, rtf_lstm_rounds(), threads, results_of);
}

}  // namespace

int main() { return check_recurrence<RtfLstmShape>(results); }
