// What every file with TensorFlow ops needs: names, macros, and threads for the kernels. See tf_interface.h.
#pragma once

#include "tf_interface.h"

#define RTF_CONCATENATED(a, b) a##b
#define RTF_UNIQUE(prefix, number) RTF_CONCATENATED(prefix, number)

// As TensorFlow's macros of these names.
#define OP_REQUIRES(context, condition, status) \
  do {                                          \
    if (!(condition)) {                         \
      (context)->CtxFailure(status);            \
      return;                                   \
    }                                           \
  } while (0)

#define OP_REQUIRES_OK(context, expression)                    \
  do {                                                         \
    if (::rtf::Status status_ = (expression); !status_.ok()) { \
      (context)->CtxFailure(status_);                          \
      return;                                                  \
    }                                                          \
  } while (0)

#define TF_RETURN_IF_ERROR(expression)                                       \
  do {                                                                       \
    if (::rtf::Status status_ = (expression); !status_.ok()) return status_; \
  } while (0)

#define REGISTER_OP(name) \
  static ::rtf::Registered RTF_UNIQUE(rtf_op_, __COUNTER__) __attribute__((unused)) = ::rtf::OpBuilder(name)

#define REGISTER_KERNEL_BUILDER(builder, ...)                                                   \
  static const bool RTF_UNIQUE(rtf_kernel_, __COUNTER__) __attribute__((unused)) = builder.add( \
      #__VA_ARGS__,                                                                             \
      [](::rtf::OpKernelConstruction* construction) -> ::rtf::OpKernel* { return new __VA_ARGS__(construction); })

namespace rtf {

struct Registered {
  Registered(OpBuilder& builder) { builder.add(); }  // NOLINT(google-explicit-constructor)
};

// The floats of an input, and of an output or of scratch memory.
inline const float* floats(const Tensor& tensor) { return tensor.flat<float>().data(); }
inline float* floats(Tensor* tensor) { return tensor->flat<float>().data(); }

// Scratch memory of a number of floats.
inline Status allocate_scratch(OpKernelContext* context, int64_t size, Tensor* scratch) {
  return context->allocate_temp(DT_FLOAT, TensorShape({size}), scratch);
}

// Reads attributes of an op: pairs of a name and the address of its value.
inline void read_attrs(OpKernelConstruction*) {}

template <typename Value, typename... Others>
void read_attrs(OpKernelConstruction* construction, const char* name, Value* value, const Others&... others) {
  OP_REQUIRES_OK(construction, construction->GetAttr(name, value));
  read_attrs(construction, others...);
}

}  // namespace rtf
