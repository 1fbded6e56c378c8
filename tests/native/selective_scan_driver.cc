// Runs the kernels of the selective state spaces on random sizes, for the sanitizers; the results do not depend on
// threads.
#include <cstdio>

#include "driver.h"
#include "selective_scan/selective_scan.h"

namespace {

Array results(const RtfSelectiveShape& shape, const RtfThreads& threads) {
  const RtfSequences& s = shape.sequences;
  const int64_t all = s.frames * s.batch * s.units, small = s.frames * s.batch * shape.states;
  const int64_t state = s.batch * shape.states * s.units;
  std::srand(1);
  const Array x = random_array(all), delta = random_array(all), a = random_array(shape.states * s.units);
  const Array b = random_array(small), c = random_array(small), d = random_array(s.units), h0 = random_array(state);
  const Array dy = random_array(all), dh_last = random_array(state);
  Array y(all), h_last(state), kept(rtf_selective_checkpoints(s.frames) * state);
  Array dx(all), ddelta(all), da(state), db(small), dc(small), dd(s.batch * s.units), dh0(state);
  Array scratch(rtf_selective_scratch_size(&shape));
  const RtfSelectiveInputs inputs = {x.data(), delta.data(), a.data(), b.data(), c.data(), d.data(), h0.data()};
  const RtfSelectiveGradients gradients = {dx.data(), ddelta.data(), da.data(), db.data(),
                                           dc.data(), dd.data(),     dh0.data()};
  rtf_selective_forward_f32(&shape, &inputs, y.data(), h_last.data(), kept.data(), &threads);
  rtf_selective_backward_f32(&shape, &inputs, kept.data(), dy.data(), dh_last.data(), &gradients, scratch.data(),
                             &threads);
  return joined({&y, &h_last, &dx, &ddelta, &da, &db, &dc, &dd, &dh0});
}

}  // namespace

int main() {
  for (int seed = 0; seed < 24; ++seed) {
    std::srand(seed);
    const int64_t units = seed % 10 == 0 ? 200 : 1 + std::rand() % 70, frames = seed % 5 == 0 ? 70 : std::rand() % 9;
    RtfSelectiveShape shape = {{frames, std::rand() % 4, units, nullptr, seed % 2}, 1 + std::rand() % 5};
    std::vector<int32_t> lengths(shape.sequences.batch);
    for (int32_t& length : lengths) length = std::rand() % (frames + 1);
    if (seed / 2 % 2) shape.sequences.lengths = lengths.data();
    const Array alone = results(shape, RtfThreads{run_threads, nullptr, 1});
    bool good = finite(alone);
    for (int n : {2, 3}) good &= alone == results(shape, RtfThreads{run_threads, nullptr, n});
    if (!good) return std::printf("case %d is wrong\n", seed), 1;
  }
  std::puts("good");
}
