// Runs the kernels of the alignments for GPUs on random sizes, as many as the argument says, for the sanitizers;
// twice, which has to give the same bits.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../align_cases.h"
#include "align/align_cuda.h"

namespace {

// That of the emulator.
void* const kStream = reinterpret_cast<void*>(0x100);

// A workspace of exactly its size, at a multiple of 256.
class Space {
 public:
  explicit Space(int64_t bytes) : memory_(std::aligned_alloc(256, bytes ? bytes : 256)) {
    std::memset(memory_, 255, bytes);
  }
  ~Space() { std::free(memory_); }
  Space(const Space&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_;
};

Floats results(int seed) {
  AlignCase c(seed);
  Floats all;
  const auto keep = [&](const char* error, const auto& part) {
    if (error) std::puts(error), std::exit(1);
    all.insert(all.end(), c.totals.begin(), c.totals.end());
    all.insert(all.end(), part.begin(), part.end());
  };
  const Space ctc(rtf_chain_cuda_workspace(&c.scores, 2 * c.labels + 1)),
      soft(rtf_chain_cuda_workspace(&c.scores, c.labels));
  keep(rtf_ctc_cuda_f32(&c.scores, &c.ctc, c.totals.data(), c.by_class.data(), ctc.get(), kStream), c.by_class);
  keep(rtf_chain_soft_cuda_f32(&c.scores, &c.chains, c.by_class.data(), c.totals.data(), soft.get(), kStream),
       c.by_class);
  const Space best(rtf_chain_best_cuda_workspace(&c.scores, c.labels));
  keep(rtf_chain_best_cuda_f32(&c.scores, &c.chains, c.path.data(), c.totals.data(), best.get(), kStream), c.path);
  const Space acceptor(rtf_acceptor_cuda_workspace(&c.scores, &c.acceptors));
  keep(rtf_acceptor_soft_cuda_f32(&c.scores, &c.acceptors, c.by_class.data(), c.totals.data(), acceptor.get(), kStream),
       c.by_class);
  const Space edges(rtf_acceptor_best_cuda_workspace(&c.scores, &c.acceptors));
  keep(rtf_acceptor_best_cuda_f32(&c.scores, &c.acceptors, c.path.data(), c.totals.data(), edges.get(), kStream),
       c.path);
  const Space lattice(rtf_transducer_cuda_workspace(&c.transducer));
  keep(rtf_transducer_cuda_f32(&c.transducer, c.totals.data(), c.by_cell.data(), lattice.get(), kStream), c.by_cell);
  return all;
}

}  // namespace

int main(int, char** arguments) {
  for (int seed = 1; seed <= std::atoi(arguments[1]); ++seed) {
    const Floats one = results(seed), other = results(seed);
    if (one.size() != other.size() ||
        (!one.empty() && std::memcmp(one.data(), other.data(), one.size() * sizeof(float)))) {
      std::printf("case %d: other bits in the second run\n", seed);
      return 1;
    }
  }
  std::puts("good");
}
