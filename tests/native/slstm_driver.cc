// Runs the sLSTM kernels over many sizes on arrays of exactly the size that they need, which sanitizers or guards
// watch.
#include "driver.h"
#include "slstm/slstm.h"

namespace {

struct State {
  Array c, n, m, h;

  explicit State(int64_t size) : c(size), n(size), m(size), h(size) {}
  RtfSLstmState out() { return {c.data(), n.data(), m.data(), h.data()}; }
  RtfSLstmConstState in() const { return {c.data(), n.data(), m.data(), h.data()}; }
};

Array results_of(const RtfSLstmShape& shape, float scale, int rounded, const RtfThreads& threads) {
  const int64_t T = shape.frames, B = shape.batch, H = shape.units;
  const Array z = random_array_again(T * B * 4 * H), r = random_array(H * 4 * H, scale);
  State first(B * H), states(T * B * H), last(B * H), dfirst(B * H);
  first.c = random_array(B * H), first.m = random_array(B * H), first.h = random_array(B * H);
  for (float& n : first.n) n = 1.0f;
  Array gates(T * B * 4 * H), dz(T * B * 4 * H), scratch(rtf_slstm_scratch_size(&shape, rounded));
  const RtfSLstmConstState initial = first.in();
  const RtfSLstmState all = states.out(), end = last.out(), dinitial = dfirst.out();
  const int exp_forget = shape.reverse;
  rtf_slstm_forward_f32(&shape, rounded, exp_forget, z.data(), r.data(), &initial, &all, gates.data(), &end,
                        scratch.data(), &threads);
  // No gradient depends on which of two nearly equal numbers determined m, so that rounded products change little.
  for (size_t i = 0; i < last.m.size(); ++i) last.m[i] = last.c[i] * last.c[i] + last.n[i] * last.n[i];
  const RtfSLstmConstState between = states.in(), dlast = last.in();
  rtf_slstm_backward_f32(&shape, rounded, exp_forget, r.data(), &initial, &between, gates.data(), states.h.data(),
                         &dlast, dz.data(), &dinitial, scratch.data(), &threads);
  return joined({&states.c, &states.n, &states.m, &states.h, &gates, &last.c, &last.n, &last.m, &last.h, &dz, &dfirst.c,
                 &dfirst.n, &dfirst.m, &dfirst.h});
}

Array results(const RtfSLstmShape& shape, const RtfThreads& threads) {
  return results_of_forms(shape, rtf_slstm_rounds(), threads, results_of);
}

}  // namespace

int main() { return check_recurrence<RtfSLstmShape>(results); }
