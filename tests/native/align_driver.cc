// Runs the kernels of the alignments on random sizes, for the sanitizers; one thread and three have to give the same bits.
#include <cstdio>
#include <cstring>
#include <vector>

#include "align/align.h"
#include "driver.h"

namespace {

typedef std::vector<float> Floats;
typedef std::vector<int32_t> Ints;

uint32_t state = 1;

int draw(int64_t limit) {
  state = state * 1664525u + 1013904223u;
  return limit > 0 ? static_cast<int>((state >> 8) % limit) : 0;
}

Ints ints(int64_t n, int64_t limit) {
  Ints values(n);
  for (int32_t& value : values) value = draw(limit);
  return values;
}

Floats floats(int64_t n) {
  Floats values(n);
  for (float& value : values) value = draw(1000) / 200.0f - 2.5f;
  return values;
}

// All results of one case, behind each other.
Floats results(int seed, int n_threads) {
  state = seed;
  const RtfThreads threads = {run_threads, nullptr, n_threads};
  const int64_t frames = draw(20), batch = draw(7), classes = 1 + draw(40), labels = draw(12), edges = 2 * labels;
  const Floats values = floats(frames * batch * classes), joint = floats(batch * frames * (labels + 1) * classes);
  const Ints lengths = ints(batch, frames + 1), symbols = ints(batch * labels, classes), counts = ints(batch, labels + 1);
  const RtfScores scores = {frames, batch, classes, values.data(), lengths.data()};
  const Floats costs = floats(batch * edges);
  const Ints states(batch, 4);
  Ints arcs = ints(batch * edges * 3, 4);
  for (size_t i = 2; i < arcs.size(); i += 3) arcs[i] = draw(classes + 1) - 1;
  std::vector<uint8_t> loop(batch * labels, 1), skip(batch * labels);
  for (uint8_t& flag : skip) flag = draw(2);
  const RtfCtc ctc = {labels, symbols.data(), counts.data(), 0, draw(2), draw(2), draw(2)};
  const RtfChains chains = {labels, symbols.data(), counts.data(), loop.data(), skip.data(), draw(2)};
  const RtfAcceptors acceptors = {edges, 4, arcs.data(), costs.data(), states.data()};
  const RtfTransducer transducer = {batch,          frames, labels,  classes, joint.data(), lengths.data(), symbols.data(),
                                    counts.data(), 0,      draw(2), draw(2)};

  Floats all, totals(batch), by_class(values.size()), by_cell(joint.size());
  Ints path(frames * batch);
  const auto keep = [&](const Floats& part) {
    all.insert(all.end(), totals.begin(), totals.end());
    all.insert(all.end(), part.begin(), part.end());
  };
  Floats scratch(rtf_chain_scratch_size(frames, 2 * labels + 1, n_threads));
  rtf_ctc_f32(&scores, &ctc, totals.data(), by_class.data(), scratch.data(), &threads);
  keep(by_class);
  scratch = Floats(rtf_chain_scratch_size(frames, labels, n_threads));
  rtf_chain_soft_f32(&scores, &chains, by_class.data(), totals.data(), scratch.data(), &threads);
  keep(by_class);
  rtf_chain_best_f32(&scores, &chains, path.data(), totals.data(), scratch.data(), &threads);
  keep(Floats(path.begin(), path.end()));
  scratch = Floats(rtf_acceptor_scratch_size(frames, &acceptors, n_threads));
  rtf_acceptor_soft_f32(&scores, &acceptors, by_class.data(), totals.data(), scratch.data(), &threads);
  keep(by_class);
  scratch = Floats(rtf_transducer_scratch_size(&transducer, n_threads));
  rtf_transducer_f32(&transducer, totals.data(), by_cell.data(), scratch.data(), &threads);
  keep(by_cell);
  return all;
}

}  // namespace

int main() {
  for (int seed = 1; seed <= 150; ++seed) {
    const Floats one = results(seed, 1), three = results(seed, 3);
    if (one.size() != three.size() || (!one.empty() && std::memcmp(one.data(), three.data(), one.size() * sizeof(float)))) {
      std::printf("case %d depends on the number of threads\n", seed);
      return 1;
    }
  }
  std::puts("good");
}
