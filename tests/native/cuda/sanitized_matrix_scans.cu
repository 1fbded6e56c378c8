// Runs the GPU kernels of the matrix-valued recurrences, or with RTF_DELTA those of the delta rule, on arrays of
// exactly their size, for the sanitizers to watch.
#include "../driver.h"
#if RTF_DELTA
#include "delta_scan/delta_scan_cuda.cu"
using Shape = RtfDeltaScanShape;
#else
#include "matrix_scan/matrix_scan_cuda.cu"
using Shape = RtfMatrixScanShape;
#endif

namespace {

const char* run(const Shape& shape) {
  const RtfSequences& s = shape.sequences;
  const int64_t heads = s.batch * s.units, rows = s.frames * heads, state = heads * shape.keys * shape.values;
  const Array q = random_array(rows * shape.keys), k = random_array(rows * shape.keys);
  const Array v = random_array(rows * shape.values), first = random_array(state);
  const Array d_o = random_array(rows * shape.values), d_last = random_array(state);
  Array g = random_array(rows * shape.decays);
  for (float& decay : g) decay = -100 * decay * decay;
  Array o(v.size()), last(state), d_q(q.size()), d_k(k.size()), d_v(v.size()), d_g(g.size()), d_first(state);
#if RTF_DELTA
  const Array a = random_array(rows * shape.keys);
  Array b = random_array(rows * shape.keys);
  for (float& number : b) number *= 0.1f;  // such that the state stays small
  Array u(v.size()), d_a(a.size()), d_b(b.size()), scratch(rtf_delta_scan_cuda_scratch_size(&shape));
  const RtfDeltaScanInputs inputs = {q.data(), k.data(), v.data(), a.data(), b.data(), g.data(), first.data()};
  const RtfDeltaScanGradients gradients = {d_q.data(), d_k.data(), d_v.data(),    d_a.data(),
                                           d_b.data(), d_g.data(), d_first.data()};
  const char* error =
      rtf_delta_scan_forward_cuda_f32(&shape, &inputs, o.data(), u.data(), last.data(), rtf::emulation::stream());
  if (error != nullptr) return error;
  error = rtf_delta_scan_backward_cuda_f32(&shape, &inputs, u.data(), last.data(), d_o.data(), d_last.data(),
                                           &gradients, scratch.data(), rtf::emulation::stream());
  if (error != nullptr) return error;
  return finite(joined({&o, &u, &last, &d_q, &d_k, &d_v, &d_a, &d_b, &d_g, &d_first})) ? nullptr : "not finite";
#else
  const char* error = rtf_matrix_scan_forward_cuda_f32(&shape, q.data(), k.data(), v.data(), g.data(), first.data(),
                                                       o.data(), last.data(), rtf::emulation::stream());
  if (error != nullptr) return error;
  error = rtf_matrix_scan_backward_cuda_f32(&shape, q.data(), k.data(), v.data(), g.data(), first.data(), last.data(),
                                            d_o.data(), d_last.data(), d_q.data(), d_k.data(), d_v.data(), d_g.data(),
                                            d_first.data(), rtf::emulation::stream());
  if (error != nullptr) return error;
  return finite(joined({&o, &last, &d_q, &d_k, &d_v, &d_g, &d_first})) ? nullptr : "not finite";
#endif
}

}  // namespace

int main() {
  for (int seed = 0; seed < 24; ++seed) {
    std::srand(seed);
    const int64_t frames = seed % 6 == 0 ? 40 : std::rand() % 9;
    Shape shape = {{frames, std::rand() % 4, 1 + std::rand() % 3, nullptr, seed % 3 == 0}};
    shape.keys = 1 + std::rand() % 40;
    shape.values = 1 + std::rand() % 40;
    shape.decays = seed / 2 % 2 ? 1 : shape.keys;
#if !RTF_DELTA
    shape.exclusive = seed % 2;
#endif
    std::vector<int32_t> lengths(shape.sequences.batch);
    for (int32_t& length : lengths) length = std::rand() % (frames + 1);
    if (seed / 4 % 2) shape.sequences.lengths = lengths.data();
    if (const char* error = run(shape)) return std::printf("case %d: %s\n", seed, error), 1;
  }
  std::puts("good");
}
