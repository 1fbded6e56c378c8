// Selects and launches the sLSTM kernels on the GPU. They are described in slstm_cells.h and
// common/cuda/recurrence_kernels.h.
#include "../common/cuda/recurrence_run.h"
#include "slstm_cells.h"
#include "slstm_cuda.h"

namespace rtf {
namespace recurrence {
namespace {

// function(math, device properties) for a valid call; returns its result, or the text of an error.
template <class Function>
const char* with_floats(const RtfSLstmShape& shape, RtfNumbers numbers, const Function& function) {
  return with_device(shape, [&](const DeviceFacts& facts) -> const char* {
    switch (numbers) {
      case RTF_FLOAT: return function(FloatSplit(), facts);
      case RTF_FLOAT_TF32: return function(FloatTf32(), facts);
      default: return "the sLSTM has kernels for float only";
    }
  });
}

// Calls function(recurrence) with the variant to use and its plan; see lstm_cuda.cu.
template <class Math, class Function>
const char* with_forward(const RtfSLstmShape& shape, const DeviceFacts& facts, const Function& function) {
  const Plan narrow = make_plan<SLstmForward<Math, 8>>(shape, facts),
             wide = make_plan<SLstmForward<Math, 16>>(shape, facts);
  if (narrow.on_chip && narrow.cost < wide.cost) return function(SLstmForward<Math, 8>(), narrow);
  return function(SLstmForward<Math, 16>(), wide);
}

}  // namespace
}  // namespace recurrence
}  // namespace rtf

using namespace rtf::recurrence;

extern "C" {

const char* rtf_slstm_cuda_workspace(const RtfSLstmShape* shape, RtfNumbers numbers, int backward, int64_t* bytes) {
  *bytes = 0;
  return with_floats(*shape, numbers, [&](auto math, const rtf::DeviceFacts& facts) -> const char* {
    using Math = decltype(math);
    const auto read = [&](auto, const Plan& plan) -> const char* { return *bytes = plan.bytes, nullptr; };
    if (backward != 0) return read(math, make_plan<SLstmBackward<Math>>(*shape, facts));
    return with_forward<Math>(*shape, facts, read);
  });
}

const char* rtf_slstm_forward_cuda(const RtfSLstmShape* shape, RtfNumbers numbers, int exp_forget, const float* z,
                                   const float* r, const RtfSLstmConstState* initial, const RtfSLstmState* states,
                                   float* gates, const RtfSLstmState* last, void* workspace, void* stream) {
  return with_floats(*shape, numbers, [&](auto math, const rtf::DeviceFacts& facts) {
    return with_forward<decltype(math)>(*shape, facts, [&](auto recurrence, const Plan& plan) {
      auto call = call_of<decltype(recurrence)>(*shape, workspace, stream);
      call.arrays = {z, *initial, *states, *last, gates, exp_forget != 0};
      const int units = static_cast<int>(shape->units);
      call.weights[0] = {r, 1, units, 4 * units, units, 4, units};
      call.padded = {{gates, 4 * shape->units}};
      for (float* part : {states->c, states->n, states->m, states->h}) call.padded.push_back({part, shape->units});
      return run(call, plan);
    });
  });
}

const char* rtf_slstm_backward_cuda(const RtfSLstmShape* shape, RtfNumbers numbers, int exp_forget, const float* r,
                                    const RtfSLstmConstState* initial, const RtfSLstmConstState* states,
                                    const float* gates, const float* dh, const RtfSLstmConstState* dlast, float* dz,
                                    const RtfSLstmState* dinitial, void* workspace, void* stream) {
  return with_floats(*shape, numbers, [&](auto math, const rtf::DeviceFacts& facts) {
    using R = SLstmBackward<decltype(math)>;
    Call<R> call = call_of<R>(*shape, workspace, stream);
    call.arrays = {*initial, *states, gates, dh, *dlast, dz, *dinitial, exp_forget != 0};
    const int units = static_cast<int>(shape->units);
    call.weights[0] = {r, 4 * shape->units, 0, 1, units, 1, 4 * units};
    call.padded = {{dz, 4 * shape->units}};
    return run(call, make_plan<R>(*shape, facts));
  });
}
}
