// Launches the GRU on the GPU. The kernels are described in gru_cells.h and common/cuda/recurrence_kernels.h.
#include "../common/cuda/recurrence_run.h"
#include "gru_cells.h"
#include "gru_cuda.h"

namespace rtf {
namespace recurrence {
namespace {

struct GruForwardPointers {
  const void *z, *r_gates, *r_candidate, *h0;
  void *h, *gates, *h_last;
};

template <class R>
const char* forward(const RtfSequences& shape, const DeviceFacts& facts, const GruForwardPointers& of, void* workspace,
                    void* stream) {
  using E = typename R::Math::Element;
  Call<R> call = call_of<R>(shape, workspace, stream);
  call.arrays = {static_cast<const E*>(of.z), static_cast<const E*>(of.h0), static_cast<E*>(of.h),
                 static_cast<E*>(of.gates), static_cast<E*>(of.h_last)};
  const int H = static_cast<int>(shape.units);
  call.weights[0] = {static_cast<const E*>(of.r_gates), 1, H, 2 * H, H, 2, H};
  call.weights[1] = {static_cast<const E*>(of.r_candidate), 1, 0, H, H, 1, H};
  call.padded = {{call.arrays.h, H}, {call.arrays.gates, 3 * shape.units}};
  return run(call, make_plan<R>(shape, facts));
}

struct GruBackwardPointers {
  const void *r_gates, *r_candidate, *h0, *h, *gates, *dh, *dh_last;
  void *dz, *reset_h, *dh0;
};

template <class R>
const char* backward(const RtfSequences& shape, const DeviceFacts& facts, const GruBackwardPointers& of,
                     void* workspace, void* stream) {
  using E = typename R::Math::Element;
  Call<R> call = call_of<R>(shape, workspace, stream);
  call.arrays = {static_cast<const E*>(of.h0),      static_cast<const E*>(of.h),
                 static_cast<const E*>(of.gates),   static_cast<const E*>(of.dh),
                 static_cast<const E*>(of.dh_last), static_cast<E*>(of.dz),
                 static_cast<E*>(of.reset_h),       static_cast<E*>(of.dh0)};
  const int H = static_cast<int>(shape.units);
  call.weights[0] = {static_cast<const E*>(of.r_gates), 2 * H, 0, 1, H, 1, 2 * H};
  call.weights[1] = {static_cast<const E*>(of.r_candidate), H, 0, 1, H, 1, H};
  call.padded = {{call.arrays.dz, 3 * shape.units}, {call.arrays.reset_h, H}};
  return run(call, make_plan<R>(shape, facts));
}

}  // namespace
}  // namespace recurrence
}  // namespace rtf

extern "C" {

const char* rtf_gru_cuda_workspace(const RtfSequences* shape, RtfNumbers numbers, int backward, int64_t* bytes) {
  using namespace rtf::recurrence;
  *bytes = 0;
  return checked_call(*shape, numbers, [&](auto math, const rtf::DeviceFacts& facts) -> const char* {
    using Math = decltype(math);
    *bytes = backward != 0 ? make_plan<GruBackward<Math>>(*shape, facts).bytes
                           : make_plan<GruForward<Math>>(*shape, facts).bytes;
    return nullptr;
  });
}

const char* rtf_gru_forward_cuda(const RtfSequences* shape, RtfNumbers numbers, const void* z, const void* r_gates,
                                 const void* r_candidate, const void* h0, void* h, void* gates, void* h_last,
                                 void* workspace, void* stream) {
  using namespace rtf::recurrence;
  const GruForwardPointers pointers{z, r_gates, r_candidate, h0, h, gates, h_last};
  return checked_call(*shape, numbers, [&](auto math, const rtf::DeviceFacts& facts) {
    return forward<GruForward<decltype(math)>>(*shape, facts, pointers, workspace, stream);
  });
}

const char* rtf_gru_backward_cuda(const RtfSequences* shape, RtfNumbers numbers, const void* r_gates,
                                  const void* r_candidate, const void* h0, const void* h, const void* gates,
                                  const void* dh, const void* dh_last, void* dz, void* reset_h, void* dh0,
                                  void* workspace, void* stream) {
  using namespace rtf::recurrence;
  const GruBackwardPointers pointers{r_gates, r_candidate, h0, h, gates, dh, dh_last, dz, reset_h, dh0};
  return checked_call(*shape, numbers, [&](auto math, const rtf::DeviceFacts& facts) {
    return backward<GruBackward<decltype(math)>>(*shape, facts, pointers, workspace, stream);
  });
}
}
