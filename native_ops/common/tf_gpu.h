// What the GPU kernel of a TensorFlow op needs: its stream, scratch memory and errors. Does not need CUDA headers.
#pragma once

#include "cuda/recurrence.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "xla/stream_executor/stream.h"

namespace rtf {

// The cudaStream_t on which TensorFlow runs this op.
inline void* gpu_stream(tensorflow::OpKernelContext* context) {
  return context->op_device_context()->stream()->platform_specific_handle().stream;
}

// GPU scratch memory, 256-byte aligned. The tensor may be released at the end of Compute: TensorFlow reuses the memory
// only for later work on the same stream.
inline tensorflow::Status gpu_workspace(tensorflow::OpKernelContext* context, int64_t bytes,
                                        tensorflow::Tensor* memory) {
  return context->allocate_temp(tensorflow::DT_UINT8, tensorflow::TensorShape({bytes}), memory);
}

// The memory of a tensor, whatever its type.
inline void* gpu_memory(const tensorflow::Tensor& tensor) { return tensor.data(); }

// The number format of the products of a recurrence. For floats it follows TensorFlow's switch for TF32.
inline RtfNumbers gpu_numbers(const tensorflow::Tensor& tensor) {
  switch (tensor.dtype()) {
    case tensorflow::DT_BFLOAT16: return RTF_BFLOAT16;
    case tensorflow::DT_HALF: return RTF_FLOAT16;
    default: return tensorflow::tensor_float_32_execution_enabled() ? RTF_FLOAT_TF32 : RTF_FLOAT;
  }
}

// Handles the return value of our C interface: null, or the text of an error.
inline tensorflow::Status gpu_status(const char* op, const char* error) {
  return error == nullptr ? tensorflow::OkStatus() : tensorflow::errors::Internal(op, " on the GPU: ", error);
}

}  // namespace rtf
