// Matrix-valued recurrences on the GPU: the passes of matrix_scan_cpu.cc, by common/cuda/matrix_state.h.
#include "../common/cuda/matrix_state.h"
#include "matrix_scan.h"

namespace rtf {
namespace matrix_state {
namespace {

cudaError_t launch_of(const RtfMatrixScanShape& shape, Pass pass, cudaStream_t stream) {
  constexpr Second kNone = Second::kNone;
  // Without the output's own frame, the gradient passes the decay of a frame before it gets to its output.
  pass.late = pass.backwards && !shape.exclusive;
  if (pass.transposed)
    return shape.exclusive ? launch_pass<Decay::kColumns, kNone, true>(pass, stream)
                           : launch_pass<Decay::kColumns, kNone>(pass, stream);
  return shape.exclusive ? launch_pass<Decay::kRows, kNone, true>(pass, stream)
                         : launch_pass<Decay::kRows, kNone>(pass, stream);
}

}  // namespace
}  // namespace matrix_state
}  // namespace rtf

using namespace rtf::matrix_state;

extern "C" {

const char* rtf_matrix_scan_forward_cuda_f32(const RtfMatrixScanShape* shape, const float* q, const float* k,
                                             const float* v, const float* g, const float* first, float* o, float* last,
                                             void* stream) {
  const char* wrong = check(shape->keys, shape->values);
  if (wrong || shape->sequences.batch == 0) return wrong;
  Pass pass = pass_of(*shape, g, false);
  pass.x = k, pass.z = q, pass.y = v, pass.out = o, pass.first = first, pass.last = last;
  return text_of({launch_of(*shape, pass, static_cast<cudaStream_t>(stream))});
}

const char* rtf_matrix_scan_backward_cuda_f32(const RtfMatrixScanShape* shape, const float* q, const float* k,
                                              const float* v, const float* g, const float* first, const float* last,
                                              const float* d_o, const float* d_last, float* d_q, float* d_k, float* d_v,
                                              float* d_g, float* d_first, void* stream) {
  const char* wrong = check(shape->keys, shape->values);
  if (wrong || shape->sequences.batch == 0) return wrong;
  Pass for_q = pass_of(*shape, g, true), for_v = pass_of(*shape, g, false), for_k = pass_of(*shape, g, true);
  for_q.x = v, for_q.z = d_o, for_q.y = k, for_q.out = d_q, for_q.first = first;
  for_v.x = q, for_v.z = k, for_v.y = d_o, for_v.out = d_v, for_v.first = d_last, for_v.last = d_first;
  for_k.x = d_o, for_k.z = v, for_k.y = q, for_k.out = d_k, for_k.first = d_last;
  for_v.backwards = for_k.backwards = true;
  const Products of_q{{q}, {d_q}};
  const DecayGradient for_g{shape->sequences,
                            static_cast<int>(shape->keys),
                            static_cast<int>(shape->values),
                            static_cast<int>(shape->decays),
                            shape->exclusive ? of_q : Products{},
                            shape->exclusive ? Products{} : of_q,
                            {{k}, {d_k}},
                            last,
                            d_last,
                            d_g};
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return text_of({launch_of(*shape, for_q, on), launch_of(*shape, for_v, on), launch_of(*shape, for_k, on),
                  launch_decay_gradient(for_g, on)});
}
}
