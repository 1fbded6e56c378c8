// Runs the GPU kernels of the linear recurrences, or with RTF_SELECTIVE those of the selective state spaces, on arrays
// of exactly their size, for the sanitizers to watch.
#include "../driver.h"
#if RTF_SELECTIVE
#include "selective_scan/selective_scan_cuda.cu"
#else
#include "scan/scan_cuda.cu"
#endif

namespace {

#if RTF_SELECTIVE

const char* run(const RtfSequences& s, int seed) {
  const RtfSelectiveShape shape = {s, 1 + seed % 20};
  const int64_t all = s.frames * s.batch * s.units, small = s.frames * s.batch * shape.states;
  const int64_t state = s.batch * shape.states * s.units, chunks = (s.frames + 31) / 32;
  const Array x = random_array(all), delta = random_array(all), a = random_array(shape.states * s.units);
  const Array b = random_array(small), c = random_array(small), d = random_array(s.units), h0 = random_array(state);
  const Array dy = random_array(all), dh_last = random_array(state);
  Array y(all), h_last(state), kept(chunks * state), scratch(rtf_selective_cuda_scratch_size(&shape));
  Array dx(all), ddelta(all), da(state), db(small), dc(small), dd(s.batch * s.units), dh0(state);
  const RtfSelectiveInputs in = {x.data(), delta.data(), a.data(), b.data(), c.data(), d.data(), h0.data()};
  const RtfSelectiveGradients out = {dx.data(), ddelta.data(), da.data(), db.data(), dc.data(), dd.data(), dh0.data()};
  const char* error =
      rtf_selective_forward_cuda_f32(&shape, &in, y.data(), h_last.data(), kept.data(), rtf::emulation::stream());
  if (error != nullptr) return error;
  error = rtf_selective_backward_cuda_f32(&shape, &in, kept.data(), dy.data(), dh_last.data(), &out, scratch.data(),
                                          rtf::emulation::stream());
  if (error != nullptr) return error;
  return finite(joined({&y, &h_last, &dx, &ddelta, &da, &db, &dc, &dd, &dh0})) ? nullptr : "not finite";
}

#else

struct List {
  Array part[2];
  float* at[2] = {nullptr, nullptr};

  List(int parts, int64_t size) {
    for (int p = 0; p < parts; ++p) {
      part[p] = random_array(size);
      at[p] = part[p].data();
    }
  }
};

const char* run(const RtfSequences& s, int seed) {
  const RtfScanShape shape = {s, 1 + seed % 2, seed / 2 % 2};
  const int p = shape.parts;
  const int64_t state = s.batch * s.units, all = s.frames * state;
  const List a(p, shape.constant ? s.units : all), b(p, all), h0(p, state), h(p, all), h_last(p, state), dh(p, all);
  const List da(p, shape.constant ? state : all), db(p, all), dh0(p, state);
  const char* error = rtf_scan_forward_cuda_f32(&shape, a.at, b.at, h0.at, h.at, h_last.at, rtf::emulation::stream());
  if (error != nullptr) return error;
  return rtf_scan_backward_cuda_f32(&shape, a.at, h0.at, h.at, dh.at, h_last.at, da.at, db.at, dh0.at,
                                    rtf::emulation::stream());
}

#endif

}  // namespace

int main() {
  for (int seed = 0; seed < 24; ++seed) {
    std::srand(seed);
    const int64_t frames = seed % 6 == 0 ? 40 : std::rand() % 9;
    RtfSequences s = {frames, std::rand() % 4, 1 + std::rand() % 70, nullptr, seed % 3 == 0};
    std::vector<int32_t> lengths(s.batch);
    for (int32_t& length : lengths) length = std::rand() % (frames + 1);
    if (seed / 4 % 2) s.lengths = lengths.data();
    if (const char* error = run(s, seed)) return std::printf("case %d: %s\n", seed, error), 1;
  }
  std::puts("good");
}
