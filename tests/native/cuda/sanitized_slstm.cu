// Runs the sLSTM on arrays of exactly their size, for the sanitizers to watch.
#include <stdlib.h>

#include "../driver.h"
#include "slstm/slstm_cuda.cu"

namespace {

struct State {
  Array c, n, m, h;

  explicit State(int64_t size) : c(size, 0.1f), n(size, 1.0f), m(size, 0.1f), h(size, 0.1f) {}
  RtfSLstmState out() { return {c.data(), n.data(), m.data(), h.data()}; }
  RtfSLstmConstState in() const { return {c.data(), n.data(), m.data(), h.data()}; }
};

const char* run(const RtfSLstmShape& shape) {
  const int64_t B = shape.batch, H = shape.units, all = shape.frames * B * H;
  const int exp_forget = shape.reverse;
  const Array z = random_array(4 * all), r = random_array(4 * H * H), dh = random_array(all);
  const State first(B * H), dlast(B * H);
  State states(all), last(B * H), dinitial(B * H);
  Array gates(4 * all), dz(4 * all);
  const RtfSLstmConstState initial = first.in(), between = states.in(), from = dlast.in();
  const RtfSLstmState written = states.out(), end = last.out(), to = dinitial.out();
  for (int backward = 0; backward < 2; ++backward) {
    int64_t bytes = 0;
    const char* error = rtf_slstm_cuda_workspace(&shape, RTF_FLOAT, backward, &bytes);
    if (error != nullptr) return error;
    void* workspace = nullptr;  // aligned as on a GPU
    cudaMalloc(&workspace, static_cast<size_t>(bytes));
    error = backward
                ? rtf_slstm_backward_cuda(&shape, RTF_FLOAT, exp_forget, r.data(), &initial, &between, gates.data(),
                                          dh.data(), &from, dz.data(), &to, workspace, rtf::emulation::stream())
                : rtf_slstm_forward_cuda(&shape, RTF_FLOAT, exp_forget, z.data(), r.data(), &initial, &written,
                                         gates.data(), &end, workspace, rtf::emulation::stream());
    cudaFree(workspace);
    if (error != nullptr) return error;
  }
  return finite(joined({&states.h, &last.h, &dz, &dinitial.c, &dinitial.n, &dinitial.m, &dinitial.h})) ? nullptr
                                                                                                       : "not finite";
}

}  // namespace

int main() {
  const int32_t lengths[] = {2, 0, 3, 1, 3, 1, 2, 3, 1, 2, 3, 3, 1, 2, 3, 1, 1, 2};
  for (const char* multiprocessors : {"1", "5"})
    for (int64_t units : {1, 33, 40}) {
      setenv("RTF_EMULATION_SMS", multiprocessors, 1);
      if (const char* error = run({3, 18, units, lengths, units % 2 == 0})) return puts(error), 1;
    }
  puts("good");
}
