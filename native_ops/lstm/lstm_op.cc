// The LSTM as TensorFlow ops: shapes, memory, and the threads or the stream. The kernels are in lstm_cpu.cc and
// lstm_cuda.cu.
#include "../common/tf_sequences.h"
#include "lstm.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#include "lstm_cuda.h"
#endif

namespace rtf {
namespace {

// T is float on CPU. Lengths are in host memory. If rounded, the factors of products with the recurrent weights are, to
// bfloat16, in kernels for T = float on a CPU with AVX512-BF16.
REGISTER_OP("RtfLstm")
    .Attr("reverse: bool")
    .Attr("rounded: bool = false")
    .Attr("T: {float, bfloat16, half} = DT_FLOAT")
    .Input("z: T")            // [T, B, 4H]: W x + b
    .Input("r: T")            // [H, 4H]
    .Input("c0: T")           // [B, H]
    .Input("h0: T")           // [B, H]
    .Input("lengths: int32")  // [B]
    .Output("h: T")           // [T, B, H]
    .Output("c: T")           // [T, B, H]
    .Output("gates: T")       // [T, B, 4H]
    .Output("c_last: T")      // [B, H]
    .Output("h_last: T")      // [B, H]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle z, r, state;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &z));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 2, &r));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 2, &state));
      const DimensionHandle units = context->Dim(r, 0);
      const ShapeHandle all = context->MakeShape({context->Dim(z, 0), context->Dim(z, 1), units});
      context->set_output(0, all);
      context->set_output(1, all);
      context->set_output(2, z);
      context->set_output(3, state);
      context->set_output(4, state);
      return OkStatus();
    });

REGISTER_OP("RtfLstmGrad")
    .Attr("reverse: bool")
    .Attr("rounded: bool = false")
    .Attr("T: {float, bfloat16, half} = DT_FLOAT")
    .Input("r: T")
    .Input("c0: T")
    .Input("lengths: int32")
    .Input("c: T")
    .Input("gates: T")
    .Input("dh: T")
    .Input("dc_last: T")
    .Input("dh_last: T")
    .Output("dz: T")   // [T, B, 4H]
    .Output("dc0: T")  // [B, H]
    .Output("dh0: T")  // [B, H]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(4));
      context->set_output(1, context->input(1));
      context->set_output(2, context->input(1));
      return OkStatus();
    });

// The sizes of a call, or an error if they are inconsistent.
Status check_shapes(const TensorShape& gates, const TensorShape& r, const TensorShape& c0, const Tensor& lengths,
                    bool reverse, RtfLstmShape* shape) {
  if (r.dims() != 2 || r.dim_size(0) < 1 || r.dim_size(1) != 4 * r.dim_size(0))
    return InvalidArgument("LSTM: recurrent weights have to be [units, 4 * units] with at least one unit, but are ",
                           r.DebugString());
  const int64_t units = r.dim_size(0);
  if (gates.dims() != 3 || gates.dim_size(2) != 4 * units)
    return InvalidArgument("LSTM: input has to be [time, batch, ", 4 * units, "], but is ", gates.DebugString());
  const int64_t frames = gates.dim_size(0), batch = gates.dim_size(1);
  if (c0 != TensorShape({batch, units}))
    return InvalidArgument("LSTM: states have to be [", batch, ", ", units, "], but are ", c0.DebugString());
  return read_sequences("LSTM", frames, batch, units, lengths, reverse, shape);
}

// The arrays of a pass.
struct Forward {
  const Tensor &z, &r, &c0, &h0;
  Tensor *h, *c, *gates, *c_last, *h_last;
};

struct Backward {
  const Tensor &r, &c0, &c, &gates, &dh, &dc_last, &dh_last;
  Tensor *dz, *dc0, *dh0;
};

// Runs the CPU kernels on TensorFlow's threads, with scratch memory from TensorFlow.
struct Cpu {
  static bool rounds() { return rtf_lstm_rounds(); }

  template <class Run>
  static Status with_scratch(OpKernelContext* context, const RtfLstmShape& shape, bool rounded, const Run& run) {
    Tensor scratch;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_lstm_scratch_size(&shape, rounded), &scratch));
    const RtfThreads threads = tf_threads(context);
    run(floats(&scratch), &threads);
    return OkStatus();
  }

  static Status run(OpKernelContext* context, const RtfLstmShape& shape, bool rounded, const Forward& x) {
    return with_scratch(context, shape, rounded, [&](float* scratch, const RtfThreads* threads) {
      rtf_lstm_forward_f32(&shape, rounded, floats(x.z), floats(x.r), floats(x.c0), floats(x.h0), floats(x.h),
                           floats(x.c), floats(x.gates), floats(x.c_last), floats(x.h_last), scratch, threads);
    });
  }

  static Status run(OpKernelContext* context, const RtfLstmShape& shape, bool rounded, const Backward& x) {
    return with_scratch(context, shape, rounded, [&](float* scratch, const RtfThreads* threads) {
      rtf_lstm_backward_f32(&shape, rounded, floats(x.r), floats(x.c0), floats(x.c), floats(x.gates), floats(x.dh),
                            floats(x.dc_last), floats(x.dh_last), floats(x.dz), floats(x.dc0), floats(x.dh0), scratch,
                            threads);
    });
  }
};

#if RTF_CUDA
// Runs the GPU kernels on TensorFlow's stream.
struct Gpu {
  static bool rounds() { return false; }

  static Status workspace(OpKernelContext* context, const RtfLstmShape& shape, RtfNumbers numbers, bool backward,
                          Tensor* memory) {
    int64_t bytes;
    TF_RETURN_IF_ERROR(gpu_status("LSTM", rtf_lstm_cuda_workspace(&shape, numbers, backward, &bytes)));
    return gpu_workspace(context, bytes, memory);
  }

  static Status run(OpKernelContext* context, const RtfLstmShape& shape, bool, const Forward& x) {
    const RtfNumbers numbers = gpu_numbers(x.z);
    Tensor memory;
    TF_RETURN_IF_ERROR(workspace(context, shape, numbers, false, &memory));
    return gpu_status("LSTM", rtf_lstm_forward_cuda(&shape, numbers, x.z.data(), x.r.data(), x.c0.data(), x.h0.data(),
                                                    x.h->data(), x.c->data(), x.gates->data(), x.c_last->data(),
                                                    x.h_last->data(), memory.data(), gpu_stream(context)));
  }

  static Status run(OpKernelContext* context, const RtfLstmShape& shape, bool, const Backward& x) {
    const RtfNumbers numbers = gpu_numbers(x.gates);
    Tensor memory;
    TF_RETURN_IF_ERROR(workspace(context, shape, numbers, true, &memory));
    return gpu_status(
        "LSTM", rtf_lstm_backward_cuda(&shape, numbers, x.r.data(), x.c0.data(), x.c.data(), x.gates.data(),
                                       x.dh.data(), x.dc_last.data(), x.dh_last.data(), x.dz->data(), x.dc0->data(),
                                       x.dh0->data(), memory.data(), gpu_stream(context)));
  }
};
#endif

template <class Device>
class LstmOp : public OpKernel {
 public:
  explicit LstmOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "reverse", &reverse_, "rounded", &rounded_);
    OP_REQUIRES(construction, !rounded_ || Device::rounds(),
                InvalidArgument("LSTM: this device can't round the factors of products to bfloat16"));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &z = context->input(0), &r = context->input(1), &c0 = context->input(2), &h0 = context->input(3);
    RtfLstmShape shape;
    OP_REQUIRES_OK(context, check_shapes(z.shape(), r.shape(), c0.shape(), context->input(4), reverse_, &shape));
    OP_REQUIRES(context, h0.shape() == c0.shape(), InvalidArgument("LSTM: the two initial states differ in shape"));
    const TensorShape all({shape.frames, shape.batch, shape.units});
    Tensor *h, *c, *gates, *c_last, *h_last;
    OP_REQUIRES_OK(context, context->allocate_output(0, all, &h));
    OP_REQUIRES_OK(context, context->allocate_output(1, all, &c));
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 2, z.shape(), &gates));
    OP_REQUIRES_OK(context, context->allocate_output(3, c0.shape(), &c_last));
    OP_REQUIRES_OK(context, context->allocate_output(4, c0.shape(), &h_last));
    OP_REQUIRES_OK(context, Device::run(context, shape, rounded_, Forward{z, r, c0, h0, h, c, gates, c_last, h_last}));
  }

 private:
  bool reverse_, rounded_;
};

template <class Device>
class LstmGradOp : public OpKernel {
 public:
  explicit LstmGradOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "reverse", &reverse_, "rounded", &rounded_);
    OP_REQUIRES(construction, !rounded_ || Device::rounds(),
                InvalidArgument("LSTM: this device can't round the factors of products to bfloat16"));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &r = context->input(0), &c0 = context->input(1), &c = context->input(3), &gates = context->input(4);
    const Tensor &dh = context->input(5), &dc_last = context->input(6), &dh_last = context->input(7);
    RtfLstmShape shape;
    OP_REQUIRES_OK(context, check_shapes(gates.shape(), r.shape(), c0.shape(), context->input(2), reverse_, &shape));
    const TensorShape all({shape.frames, shape.batch, shape.units});
    OP_REQUIRES(context,
                c.shape() == all && dh.shape() == all && dc_last.shape() == c0.shape() && dh_last.shape() == c0.shape(),
                InvalidArgument("LSTM: the gradients do not have the shape of what they are gradients of"));
    Tensor *dz, *dc0, *dh0;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({4}, 0, gates.shape(), &dz));
    OP_REQUIRES_OK(context, context->allocate_output(1, c0.shape(), &dc0));
    OP_REQUIRES_OK(context, context->allocate_output(2, c0.shape(), &dh0));
    OP_REQUIRES_OK(
        context, Device::run(context, shape, rounded_, Backward{r, c0, c, gates, dh, dc_last, dh_last, dz, dc0, dh0}));
  }

 private:
  bool reverse_, rounded_;
};

#define RTF_REGISTER_LSTM(DEVICE, T, KERNELS)                                                              \
  REGISTER_KERNEL_BUILDER(Name("RtfLstm").Device(DEVICE).TypeConstraint("T", T).HostMemory("lengths"),     \
                          LstmOp<KERNELS>);                                                                \
  REGISTER_KERNEL_BUILDER(Name("RtfLstmGrad").Device(DEVICE).TypeConstraint("T", T).HostMemory("lengths"), \
                          LstmGradOp<KERNELS>)

RTF_REGISTER_LSTM(DEVICE_CPU, DT_FLOAT, Cpu);
#if RTF_CUDA
RTF_REGISTER_LSTM(DEVICE_GPU, DT_FLOAT, Gpu);
RTF_REGISTER_LSTM(DEVICE_GPU, DT_BFLOAT16, Gpu);
RTF_REGISTER_LSTM(DEVICE_GPU, DT_HALF, Gpu);
#endif

}  // namespace
}  // namespace rtf
