// The shapes of what scans with a matrix per head as state read and return.
#pragma once

#include <string>
#include <vector>

#include "tf_sequences.h"

namespace rtf {

// What an input has to be; of the log decays: [T, B, H, K or 1].
enum class ScanInput { kKeys, kValues, kDecays, kState };

struct NamedScanInput {
  const char* name;
  ScanInput kind;
};

inline const float* in(OpKernelContext* context, int index) { return floats(context->input(index)); }

// Checks the first inputs of a scan, of which input 0 has keys and input 2 values; sets keys, values, decays and
// sequences of the shape. The lengths follow the inputs, on_host or in the memory of a GPU.
template <typename Shape>
Status check_scan(const char* op, OpKernelContext* context, const std::vector<NamedScanInput>& inputs, bool reverse,
                  bool on_host, Shape* shape) {
  const TensorShape &q = context->input(0).shape(), &v = context->input(2).shape();
  if (q.dims() != 4) return InvalidArgument(op, ": q has to be [time, batch, heads, keys], not ", q.DebugString());
  const int64_t frames = q.dim_size(0), batch = q.dim_size(1), heads = q.dim_size(2), keys = q.dim_size(3);
  const int64_t values = v.dims() == 4 ? v.dim_size(3) : 0;
  const int n_inputs = static_cast<int>(inputs.size());
  for (int i = 0; i < n_inputs; ++i) {
    const TensorShape& given = context->input(i).shape();
    TensorShape expected = q;
    if (inputs[i].kind == ScanInput::kValues) expected = TensorShape({frames, batch, heads, values});
    if (inputs[i].kind == ScanInput::kState) expected = TensorShape({batch, heads, keys, values});
    if (inputs[i].kind == ScanInput::kDecays && given.dims() == 4) {
      shape->decays = given.dim_size(3);
      if (shape->decays == 1) expected = TensorShape({frames, batch, heads, 1});
    }
    if (given != expected)
      return InvalidArgument(op, ": ", inputs[i].name, " has to be ", expected.DebugString(), ", but is ",
                             given.DebugString());
  }
  if (heads < 1 || keys < 1 || values < 1) return InvalidArgument(op, ": there are no heads, keys or values");
  shape->keys = keys;
  shape->values = values;
  return read_sequences(op, frames, batch, heads, context->input(n_inputs), reverse, &shape->sequences, on_host);
}

// Checks that inputs have the shapes of others.
inline Status check_gradients(const char* op, OpKernelContext* context, const std::vector<std::pair<int, int>>& pairs) {
  for (const auto& [index, like] : pairs)
    if (context->input(index).shape() != context->input(like).shape())
      return InvalidArgument(op, ": the gradients do not have the shape of what they are gradients of");
  return OkStatus();
}

// Allocates an output like each of the first inputs.
template <int kCount>
Status allocate_like_inputs(OpKernelContext* context, float* (&out)[kCount]) {
  for (int i = 0; i < kCount; ++i) {
    Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(i, context->input(i).shape(), &tensor));
    out[i] = floats(tensor);
  }
  return OkStatus();
}

}  // namespace rtf
