// Runs the kernels of the delta rule on random sizes, for the sanitizers; the results do not depend on threads.
#include <cstdio>

#include "delta_scan/delta_scan.h"
#include "driver.h"

namespace {

Array results(const RtfDeltaScanShape& shape, const RtfThreads& threads) {
  const RtfSequences& s = shape.sequences;
  const int64_t heads = s.batch * s.units, rows = s.frames * heads, state = heads * shape.keys * shape.values;
  std::srand(1);
  const Array q = random_array(rows * shape.keys), k = random_array(rows * shape.keys);
  const Array a = random_array(rows * shape.keys), v = random_array(rows * shape.values), first = random_array(state);
  const Array d_o = random_array(rows * shape.values), d_last = random_array(state);
  Array b = random_array(rows * shape.keys), g = random_array(rows * shape.decays);
  for (float& number : b) number *= 0.1f;  // such that the state stays small
  for (float& decay : g) decay = -100 * decay * decay;
  Array o(v.size()), u(v.size()), last(state), d_first(state);
  Array d_q(q.size()), d_k(k.size()), d_v(v.size()), d_a(a.size()), d_b(b.size()), d_g(g.size());
  const RtfDeltaScanInputs inputs = {q.data(), k.data(), v.data(), a.data(), b.data(), g.data(), first.data()};
  const RtfDeltaScanGradients gradients = {d_q.data(), d_k.data(), d_v.data(),    d_a.data(),
                                           d_b.data(), d_g.data(), d_first.data()};
  rtf_delta_scan_forward_f32(&shape, &inputs, o.data(), u.data(), last.data(), &threads);
  rtf_delta_scan_backward_f32(&shape, &inputs, u.data(), last.data(), d_o.data(), d_last.data(), &gradients, &threads);
  return joined({&o, &u, &last, &d_q, &d_k, &d_v, &d_a, &d_b, &d_g, &d_first});
}

}  // namespace

int main() {
  for (int seed = 0; seed < 60; ++seed) {
    std::srand(seed);
    const int64_t frames = seed % 5 == 0 ? 30 + std::rand() % 40 : std::rand() % 7;
    RtfDeltaScanShape shape = {{frames, std::rand() % 4, 1 + std::rand() % 3, nullptr, seed % 2}};
    shape.keys = 1 + std::rand() % 40;
    shape.values = 1 + std::rand() % 80;
    shape.decays = seed / 2 % 2 ? 1 : shape.keys;
    std::vector<int32_t> lengths(shape.sequences.batch);
    for (int32_t& length : lengths) length = std::rand() % (frames + 1);
    if (seed / 4 % 2) shape.sequences.lengths = lengths.data();
    const Array alone = results(shape, RtfThreads{run_threads, nullptr, 1});
    bool good = finite(alone);
    for (int n : {2, 3}) good &= alone == results(shape, RtfThreads{run_threads, nullptr, n});
    if (!good) return std::printf("case %d is wrong\n", seed), 1;
  }
  std::puts("good");
}
