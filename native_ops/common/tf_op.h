// What every file with TensorFlow ops needs: headers, names, and threads for the kernels.
#pragma once

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_threads.h"

namespace rtf {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::errors::InvalidArgument;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The floats of an input, and of an output or of scratch memory.
inline const float* floats(const Tensor& tensor) { return tensor.flat<float>().data(); }
inline float* floats(Tensor* tensor) { return tensor->flat<float>().data(); }

// Scratch memory of a number of floats.
inline Status allocate_scratch(OpKernelContext* context, int64_t size, Tensor* scratch) {
  return context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({size}), scratch);
}

// Reads attributes of an op: pairs of a name and the address of its value.
inline void read_attrs(OpKernelConstruction*) {}

template <typename Value, typename... Others>
void read_attrs(OpKernelConstruction* construction, const char* name, Value* value, const Others&... others) {
  OP_REQUIRES_OK(construction, construction->GetAttr(name, value));
  read_attrs(construction, others...);
}

}  // namespace rtf
