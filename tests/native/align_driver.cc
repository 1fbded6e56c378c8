// Runs the kernels of the alignments on random sizes, for the sanitizers; one thread and three have to give the same
// bits.
#include <cstdio>
#include <cstring>

#include "align_cases.h"
#include "driver.h"

namespace {

// All results of one case, concatenated.
Floats results(int seed, int n_threads) {
  const RtfThreads threads = {run_threads, nullptr, n_threads};
  AlignCase c(seed);
  Floats all;
  const auto keep = [&](const auto& part) {
    all.insert(all.end(), c.totals.begin(), c.totals.end());
    all.insert(all.end(), part.begin(), part.end());
  };
  Floats scratch(rtf_chain_scratch_size(c.frames, 2 * c.labels + 1, n_threads));
  rtf_ctc_f32(&c.scores, &c.ctc, c.totals.data(), c.by_class.data(), scratch.data(), &threads);
  keep(c.by_class);
  scratch = Floats(rtf_chain_scratch_size(c.frames, c.labels, n_threads));
  rtf_chain_soft_f32(&c.scores, &c.chains, c.by_class.data(), c.totals.data(), scratch.data(), &threads);
  keep(c.by_class);
  rtf_chain_best_f32(&c.scores, &c.chains, c.path.data(), c.totals.data(), scratch.data(), &threads);
  keep(c.path);
  scratch = Floats(rtf_acceptor_scratch_size(c.frames, &c.acceptors, n_threads));
  rtf_acceptor_soft_f32(&c.scores, &c.acceptors, c.by_class.data(), c.totals.data(), scratch.data(), &threads);
  keep(c.by_class);
  Ints last_arcs(rtf_acceptor_best_scratch_size(c.frames, &c.acceptors, n_threads));
  rtf_acceptor_best_f32(&c.scores, &c.acceptors, c.path.data(), c.totals.data(), last_arcs.data(), &threads);
  keep(c.path);
  scratch = Floats(rtf_transducer_scratch_size(&c.transducer, n_threads));
  rtf_transducer_f32(&c.transducer, c.totals.data(), c.by_cell.data(), scratch.data(), &threads);
  keep(c.by_cell);
  return all;
}

}  // namespace

int main() {
  for (int seed = 1; seed <= 150; ++seed) {
    const Floats one = results(seed, 1), three = results(seed, 3);
    if (one.size() != three.size() ||
        (!one.empty() && std::memcmp(one.data(), three.data(), one.size() * sizeof(float)))) {
      std::printf("case %d depends on the number of threads\n", seed);
      return 1;
    }
  }
  std::puts("good");
}
