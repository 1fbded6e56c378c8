// Runs the kernels of the linear recurrences on random sizes, for the sanitizers; the results do not depend on threads.
#include <cstdio>

#include "driver.h"
#include "scan/scan.h"

namespace {

struct List {
  Array part[2];
  const float* in[2] = {nullptr, nullptr};
  float* out[2] = {nullptr, nullptr};

  List(int parts, int64_t size, bool random) {
    for (int p = 0; p < parts; ++p) {
      part[p] = random ? random_array(size) : Array(size);
      in[p] = out[p] = part[p].data();
    }
  }
};

Array results(const RtfScanShape& shape, const RtfThreads& threads) {
  const RtfSequences& s = shape.sequences;
  const int64_t state = s.batch * s.units, all = s.frames * state, factors = shape.constant ? s.units : all;
  std::srand(1);
  const int p = shape.parts;
  const List a(p, factors, true), b(p, all, true), h0(p, state, true), dh(p, all, true), dh_last(p, state, true);
  List h(p, all, false), h_last(p, state, false), db(p, all, false), dh0(p, state, false);
  List da(p, shape.constant ? state : all, false);
  rtf_scan_forward_f32(&shape, a.in, b.in, h0.in, h.out, h_last.out, &threads);
  rtf_scan_backward_f32(&shape, a.in, h0.in, h.in, dh.in, dh_last.in, da.out, db.out, dh0.out, &threads);
  Array everything;
  for (const List* list : {&h, &h_last, &da, &db, &dh0})
    for (const Array& part : list->part) everything.insert(everything.end(), part.begin(), part.end());
  return everything;
}

}  // namespace

int main() {
  for (int seed = 0; seed < 120; ++seed) {
    std::srand(seed);
    const int64_t units = seed % 10 == 0 ? 3000 : 1 + std::rand() % 70;
    RtfScanShape shape = {{std::rand() % 7, std::rand() % 5, units, nullptr, seed % 2}, 1 + seed / 2 % 2, seed / 4 % 2};
    std::vector<int32_t> lengths(shape.sequences.batch);
    for (int32_t& length : lengths) length = std::rand() % (shape.sequences.frames + 1);
    if (seed / 8 % 2) shape.sequences.lengths = lengths.data();
    const Array alone = results(shape, RtfThreads{run_threads, nullptr, 1});
    bool good = finite(alone);
    for (int n : {2, 3}) good &= alone == results(shape, RtfThreads{run_threads, nullptr, n});
    if (!good) return std::printf("case %d is wrong\n", seed), 1;
  }
  std::puts("good");
}
