// Selects and launches the LSTM kernels on the GPU. They are described in lstm_cells.h and
// common/cuda/recurrence_kernels.h.
#include "../common/cuda/recurrence_run.h"
#include "lstm_cells.h"
#include "lstm_cuda.h"

namespace rtf {
namespace recurrence {
namespace {

// Calls function(recurrence) with the variant to use and its plan. Forward: 8 units per block are faster than 16 as
// long as they need no more blocks than there are multiprocessors.
template <class Math, class Function>
auto with_forward(const RtfSequences& shape, const DeviceFacts& facts, const Function& function) {
  const Plan narrow = make_plan<LstmForward<Math, 8>>(shape, facts),
             wide = make_plan<LstmForward<Math, 16>>(shape, facts);
  if (narrow.on_chip && narrow.cost < wide.cost) return function(LstmForward<Math, 8>(), narrow);
  return function(LstmForward<Math, 16>(), wide);
}

struct LstmForwardPointers {
  const void *z, *r, *c0, *h0;
  void *h, *c, *gates, *c_last, *h_last;
};

template <class R>
const char* forward(const RtfSequences& shape, const Plan& plan, const LstmForwardPointers& of, void* workspace,
                    void* stream) {
  using E = typename R::Math::Element;
  Call<R> call = call_of<R>(shape, workspace, stream);
  call.arrays = {static_cast<const E*>(of.z), static_cast<const E*>(of.c0), static_cast<const E*>(of.h0),
                 static_cast<E*>(of.h),       static_cast<E*>(of.c),        static_cast<E*>(of.gates),
                 static_cast<E*>(of.c_last),  static_cast<E*>(of.h_last)};
  const int H = static_cast<int>(shape.units);
  call.weights[0] = {static_cast<const E*>(of.r), 1, H, 4 * H, H, 4, H};
  call.padded = {{call.arrays.h, H}, {call.arrays.c, H}, {call.arrays.gates, 4 * shape.units}};
  return run(call, plan);
}

struct LstmBackwardPointers {
  const void *r, *c0, *c, *gates, *dh, *dc_last, *dh_last;
  void *dz, *dc0, *dh0;
};

template <class R>
const char* backward(const RtfSequences& shape, const Plan& plan, const LstmBackwardPointers& of, void* workspace,
                     void* stream) {
  using E = typename R::Math::Element;
  Call<R> call = call_of<R>(shape, workspace, stream);
  call.arrays = {static_cast<const E*>(of.c0), static_cast<const E*>(of.c),       static_cast<const E*>(of.gates),
                 static_cast<const E*>(of.dh), static_cast<const E*>(of.dc_last), static_cast<const E*>(of.dh_last),
                 static_cast<E*>(of.dz),       static_cast<E*>(of.dc0),           static_cast<E*>(of.dh0)};
  const int units = static_cast<int>(shape.units);
  call.weights[0] = {static_cast<const E*>(of.r), 4 * shape.units, 0, 1, units, 1, 4 * units};
  call.padded = {{call.arrays.dz, 4 * shape.units}};
  return run(call, plan);
}

}  // namespace
}  // namespace recurrence
}  // namespace rtf

extern "C" {

const char* rtf_lstm_cuda_workspace(const RtfSequences* shape, RtfNumbers numbers, int backward, int64_t* bytes) {
  using namespace rtf::recurrence;
  *bytes = 0;
  return checked_call(*shape, numbers, [&](auto math, const rtf::DeviceFacts& facts) -> const char* {
    using Math = decltype(math);
    if (backward != 0)
      *bytes = make_plan<LstmBackward<Math>>(*shape, facts).bytes;
    else
      *bytes = with_forward<Math>(*shape, facts, [](auto, const Plan& plan) { return plan.bytes; });
    return nullptr;
  });
}

const char* rtf_lstm_forward_cuda(const RtfSequences* shape, RtfNumbers numbers, const void* z, const void* r,
                                  const void* c0, const void* h0, void* h, void* c, void* gates, void* c_last,
                                  void* h_last, void* workspace, void* stream) {
  using namespace rtf::recurrence;
  const LstmForwardPointers pointers{z, r, c0, h0, h, c, gates, c_last, h_last};
  return checked_call(*shape, numbers, [&](auto math, const rtf::DeviceFacts& facts) {
    return with_forward<decltype(math)>(*shape, facts, [&](auto recurrence, const Plan& plan) {
      return forward<decltype(recurrence)>(*shape, plan, pointers, workspace, stream);
    });
  });
}

const char* rtf_lstm_backward_cuda(const RtfSequences* shape, RtfNumbers numbers, const void* r, const void* c0,
                                   const void* c, const void* gates, const void* dh, const void* dc_last,
                                   const void* dh_last, void* dz, void* dc0, void* dh0, void* workspace, void* stream) {
  using namespace rtf::recurrence;
  const LstmBackwardPointers pointers{r, c0, c, gates, dh, dc_last, dh_last, dz, dc0, dh0};
  return checked_call(*shape, numbers, [&](auto math, const rtf::DeviceFacts& facts) {
    using R = LstmBackward<decltype(math)>;
    return backward<R>(*shape, make_plan<R>(*shape, facts), pointers, workspace, stream);
  });
}
}
