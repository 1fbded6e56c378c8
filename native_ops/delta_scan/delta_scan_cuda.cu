// The delta rule on the GPU: the passes of delta_scan_cpu.cc, by common/cuda/matrix_state.h. In chunks (arXiv
// 2406.06484) a frame would need the inverse of a triangular matrix besides, and quotients of decays.
#include "../common/cuda/matrix_state.h"
#include "delta_scan.h"

using namespace rtf::matrix_state;

extern "C" {

int64_t rtf_delta_scan_cuda_scratch_size(const RtfDeltaScanShape* shape) {
  const RtfSequences& s = shape->sequences;
  return s.frames * s.batch * s.units * shape->values;
}

const char* rtf_delta_scan_forward_cuda_f32(const RtfDeltaScanShape* shape, const RtfDeltaScanInputs* inputs, float* o,
                                            float* u, float* last, void* stream) {
  const char* wrong = check(shape->keys, shape->values);
  if (wrong || shape->sequences.batch == 0) return wrong;
  const RtfDeltaScanInputs& in = *inputs;
  Pass pass = pass_of(*shape, in.g, false);
  pass.x = in.k, pass.z = in.q, pass.y = in.v, pass.x2 = in.b, pass.z2 = in.a;
  pass.out = o, pass.out2 = u, pass.first = in.first, pass.last = last;
  return text_of({launch_pass<Decay::kRows, Second::kRead>(pass, static_cast<cudaStream_t>(stream))});
}

const char* rtf_delta_scan_backward_cuda_f32(const RtfDeltaScanShape* shape, const RtfDeltaScanInputs* inputs,
                                             const float* u, const float* last, const float* d_o, const float* d_last,
                                             const RtfDeltaScanGradients* gradients, float* scratch, void* stream) {
  const char* wrong = check(shape->keys, shape->values);
  if (wrong || shape->sequences.batch == 0) return wrong;
  const RtfDeltaScanInputs& in = *inputs;
  const RtfDeltaScanGradients& d = *gradients;
  float* w = scratch;
  Pass values = pass_of(*shape, in.g, false);
  values.x = in.q, values.z = in.k, values.y = d_o, values.x2 = in.a, values.z2 = in.b;
  values.out = d.v, values.out2 = w, values.first = d_last, values.last = d.first;
  Pass forwards = pass_of(*shape, in.g, true);
  forwards.x = in.v, forwards.z = d_o, forwards.y = in.k, forwards.x2 = u, forwards.z2 = w, forwards.y2 = in.b;
  forwards.out = d.q, forwards.out2 = d.a, forwards.first = in.first;
  Pass backwards = pass_of(*shape, in.g, true);
  backwards.x = d_o, backwards.z = in.v, backwards.y = in.q, backwards.x2 = w, backwards.z2 = u, backwards.y2 = in.a;
  backwards.out = d.k, backwards.out2 = d.b, backwards.first = d_last;
  for (Pass* pass : {&values, &backwards}) pass->backwards = pass->late = true;
  const DecayGradient for_g{shape->sequences,
                            static_cast<int>(shape->keys),
                            static_cast<int>(shape->values),
                            static_cast<int>(shape->decays),
                            {{in.a}, {d.a}},
                            {{in.q}, {d.q}},
                            {{in.b, in.k}, {d.b, d.k}},
                            last,
                            d_last,
                            d.g};
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  return text_of({launch_pass<Decay::kRows, Second::kRead>(values, on),
                  launch_pass<Decay::kColumns, Second::kGiven, true>(forwards, on),
                  launch_pass<Decay::kColumns, Second::kGiven>(backwards, on), launch_decay_gradient(for_g, on)});
}
}
