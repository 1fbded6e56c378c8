// Runs the LSTM kernels over many sizes on arrays of exactly the size that they need, which sanitizers or guards watch.
#include "driver.h"
#include "lstm/lstm.h"

namespace {

Array results(const RtfLstmShape& shape, const RtfThreads& threads) {
  const int64_t T = shape.frames, B = shape.batch, H = shape.units;
  const Array z = random_array_again(T * B * 4 * H), r = random_array(H * 4 * H), state = random_array(B * H);
  Array h(T * B * H), c(T * B * H), gates(T * B * 4 * H), c_last(B * H), h_last(B * H);
  Array scratch(rtf_lstm_scratch_size(&shape)), dz(T * B * 4 * H), dc0(B * H), dh0(B * H);
  rtf_lstm_forward_f32(&shape, z.data(), r.data(), state.data(), state.data(), h.data(), c.data(), gates.data(),
                       c_last.data(), h_last.data(), scratch.data(), &threads);
  rtf_lstm_backward_f32(&shape, r.data(), state.data(), c.data(), gates.data(), h.data(), c_last.data(), h_last.data(),
                        dz.data(), dc0.data(), dh0.data(), scratch.data(), &threads);
  return joined({&h, &c, &gates, &c_last, &h_last, &dz, &dc0, &dh0});
}

}  // namespace

int main() { return check_recurrence<RtfLstmShape>(results); }
