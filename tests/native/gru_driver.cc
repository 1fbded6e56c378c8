// Runs the GRU kernels over many sizes on arrays of exactly the size that they need, for the sanitizers to watch.
#include "driver.h"
#include "gru/gru.h"

namespace {

Array results_of(const RtfGruShape& shape, float scale, int rounded, const RtfThreads& threads) {
  const int64_t T = shape.frames, B = shape.batch, H = shape.units;
  const Array z = random_array_again(T * B * 3 * H), r_gates = random_array(H * 2 * H, scale);
  const Array r_candidate = random_array(H * H, scale), state = random_array(B * H);
  Array h(T * B * H), gates(T * B * 3 * H), h_last(B * H), scratch(rtf_gru_scratch_size(&shape, rounded));
  Array dz(T * B * 3 * H), reset_h(T * B * H), dh0(B * H);
  rtf_gru_forward_f32(&shape, rounded, z.data(), r_gates.data(), r_candidate.data(), state.data(), h.data(),
                      gates.data(), h_last.data(), scratch.data(), &threads);
  rtf_gru_backward_f32(&shape, rounded, r_gates.data(), r_candidate.data(), state.data(), h.data(), gates.data(),
                       h.data(), h_last.data(), dz.data(), reset_h.data(), dh0.data(), scratch.data(), &threads);
  return joined({&h, &gates, &h_last, &dz, &reset_h, &dh0});
}

Array results(const RtfGruShape& shape, const RtfThreads& threads) {
  return results_of_forms(shape, rtf_gru_rounds(), threads, results_of);
}

}  // namespace

int main() { return check_recurrence<RtfGruShape>(results); }
