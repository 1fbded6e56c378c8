// What the GPU kernel of a TensorFlow op needs: its stream, scratch memory and errors. Does not need CUDA headers.
#pragma once

#include "cuda/recurrence.h"
#include "tf_interface.h"

namespace rtf {

// The cudaStream_t on which TensorFlow runs this op.
void* gpu_stream(OpKernelContext* context);
// TensorFlow's switch for TF32.
bool tensor_float_32_enabled();

// GPU scratch memory, 256-byte aligned. The tensor may be released at the end of Compute: TensorFlow reuses the memory
// only for later work on the same stream.
inline Status gpu_workspace(OpKernelContext* context, int64_t bytes, Tensor* memory) {
  return context->allocate_temp(DT_UINT8, TensorShape({bytes}), memory);
}

// The memory of a tensor, whatever its type.
inline void* gpu_memory(const Tensor& tensor) { return tensor.data(); }

// The number format of the products of a recurrence. For floats it follows TensorFlow's switch for TF32.
inline RtfNumbers gpu_numbers(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DT_BFLOAT16: return RTF_BFLOAT16;
    case DT_HALF: return RTF_FLOAT16;
    default: return tensor_float_32_enabled() ? RTF_FLOAT_TF32 : RTF_FLOAT;
  }
}

// Handles the return value of our C interface: null, or the text of an error.
inline Status gpu_status(const char* op, const char* error) {
  return error == nullptr ? OkStatus() : Internal(op, " on the GPU: ", error);
}

}  // namespace rtf
