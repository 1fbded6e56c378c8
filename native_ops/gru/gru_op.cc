// The GRU as TensorFlow ops: shapes, memory, and the threads or the stream. The kernels are in gru_cpu.cc and
// gru_cuda.cu.
#include "../common/tf_sequences.h"
#include "gru.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#include "gru_cuda.h"
#endif

namespace rtf {
namespace {

// T is float on CPU. Lengths are in host memory. If rounded, the factors of products with the recurrent weights are, to
// bfloat16, in kernels for T = float on a CPU with AVX512-BF16.
REGISTER_OP("RtfGru")
    .Attr("reverse: bool")
    .Attr("rounded: bool = false")
    .Attr("T: {float, bfloat16, half} = DT_FLOAT")
    .Input("z: T")            // [T, B, 3H]: W x + b of r, u, c
    .Input("r_gates: T")      // [H, 2H]
    .Input("r_candidate: T")  // [H, H]
    .Input("h0: T")           // [B, H]
    .Input("lengths: int32")  // [B]
    .Output("h: T")           // [T, B, H]
    .Output("gates: T")       // [T, B, 3H]
    .Output("h_last: T")      // [B, H]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle z, weights, state;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &z));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 2, &weights));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(3), 2, &state));
      context->set_output(0, context->MakeShape({context->Dim(z, 0), context->Dim(z, 1), context->Dim(weights, 0)}));
      context->set_output(1, z);
      context->set_output(2, state);
      return OkStatus();
    });

REGISTER_OP("RtfGruGrad")
    .Attr("reverse: bool")
    .Attr("rounded: bool = false")
    .Attr("T: {float, bfloat16, half} = DT_FLOAT")
    .Input("r_gates: T")
    .Input("r_candidate: T")
    .Input("h0: T")
    .Input("lengths: int32")
    .Input("h: T")
    .Input("gates: T")
    .Input("dh: T")
    .Input("dh_last: T")
    .Output("dz: T")       // [T, B, 3H]
    .Output("reset_h: T")  // [T, B, H]: r h_{t-1}
    .Output("dh0: T")      // [B, H]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(5));
      context->set_output(1, context->input(4));
      context->set_output(2, context->input(2));
      return OkStatus();
    });

// The sizes of a call, or an error if they are inconsistent.
Status check_shapes(const TensorShape& gates, const TensorShape& r_gates, const TensorShape& r_candidate,
                    const TensorShape& h0, const Tensor& lengths, bool reverse, RtfGruShape* shape) {
  const int64_t units = r_candidate.dims() == 2 ? r_candidate.dim_size(0) : 0;
  if (units < 1 || r_candidate != TensorShape({units, units}))
    return InvalidArgument(
        "GRU: recurrent weights of the candidate have to be [units, units] with at least one unit, but are ",
        r_candidate.DebugString());
  if (r_gates != TensorShape({units, 2 * units}))
    return InvalidArgument("GRU: recurrent weights of the gates have to be [", units, ", ", 2 * units, "], but are ",
                           r_gates.DebugString());
  if (gates.dims() != 3 || gates.dim_size(2) != 3 * units)
    return InvalidArgument("GRU: input has to be [time, batch, ", 3 * units, "], but is ", gates.DebugString());
  const int64_t batch = gates.dim_size(1);
  if (h0 != TensorShape({batch, units}))
    return InvalidArgument("GRU: the initial state has to be [", batch, ", ", units, "], but is ", h0.DebugString());
  return read_sequences("GRU", gates.dim_size(0), batch, units, lengths, reverse, shape);
}

// The arrays of a pass.
struct Forward {
  const Tensor &z, &r_gates, &r_candidate, &h0;
  Tensor *h, *gates, *h_last;
};

struct Backward {
  const Tensor &r_gates, &r_candidate, &h0, &h, &gates, &dh, &dh_last;
  Tensor *dz, *reset_h, *dh0;
};

// Runs the CPU kernels on TensorFlow's threads, with scratch memory from TensorFlow.
struct Cpu {
  static bool rounds() { return rtf_gru_rounds(); }

  static Status run(OpKernelContext* context, const RtfGruShape& shape, bool rounded, const Forward& x) {
    Tensor scratch;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_gru_scratch_size(&shape, rounded), &scratch));
    const RtfThreads threads = tf_threads(context);
    rtf_gru_forward_f32(&shape, rounded, floats(x.z), floats(x.r_gates), floats(x.r_candidate), floats(x.h0),
                        floats(x.h), floats(x.gates), floats(x.h_last), floats(&scratch), &threads);
    return OkStatus();
  }

  static Status run(OpKernelContext* context, const RtfGruShape& shape, bool rounded, const Backward& x) {
    Tensor scratch;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_gru_scratch_size(&shape, rounded), &scratch));
    const RtfThreads threads = tf_threads(context);
    rtf_gru_backward_f32(&shape, rounded, floats(x.r_gates), floats(x.r_candidate), floats(x.h0), floats(x.h),
                         floats(x.gates), floats(x.dh), floats(x.dh_last), floats(x.dz), floats(x.reset_h),
                         floats(x.dh0), floats(&scratch), &threads);
    return OkStatus();
  }
};

#if RTF_CUDA
// Runs the GPU kernels on TensorFlow's stream.
struct Gpu {
  static bool rounds() { return false; }

  static Status workspace(OpKernelContext* context, const RtfGruShape& shape, RtfNumbers numbers, bool backward,
                          Tensor* memory) {
    int64_t bytes;
    TF_RETURN_IF_ERROR(gpu_status("GRU", rtf_gru_cuda_workspace(&shape, numbers, backward, &bytes)));
    return gpu_workspace(context, bytes, memory);
  }

  static Status run(OpKernelContext* context, const RtfGruShape& shape, bool, const Forward& x) {
    const RtfNumbers numbers = gpu_numbers(x.z);
    Tensor memory;
    TF_RETURN_IF_ERROR(workspace(context, shape, numbers, false, &memory));
    return gpu_status("GRU", rtf_gru_forward_cuda(&shape, numbers, x.z.data(), x.r_gates.data(), x.r_candidate.data(),
                                                  x.h0.data(), x.h->data(), x.gates->data(), x.h_last->data(),
                                                  memory.data(), gpu_stream(context)));
  }

  static Status run(OpKernelContext* context, const RtfGruShape& shape, bool, const Backward& x) {
    const RtfNumbers numbers = gpu_numbers(x.gates);
    Tensor memory;
    TF_RETURN_IF_ERROR(workspace(context, shape, numbers, true, &memory));
    return gpu_status(
        "GRU", rtf_gru_backward_cuda(&shape, numbers, x.r_gates.data(), x.r_candidate.data(), x.h0.data(), x.h.data(),
                                     x.gates.data(), x.dh.data(), x.dh_last.data(), x.dz->data(), x.reset_h->data(),
                                     x.dh0->data(), memory.data(), gpu_stream(context)));
  }
};
#endif

template <class Device>
class GruOp : public OpKernel {
 public:
  explicit GruOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "reverse", &reverse_, "rounded", &rounded_);
    OP_REQUIRES(construction, !rounded_ || Device::rounds(),
                InvalidArgument("GRU: this device can't round the factors of products to bfloat16"));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &z = context->input(0), &r_gates = context->input(1), &r_candidate = context->input(2);
    const Tensor& h0 = context->input(3);
    RtfGruShape shape;
    OP_REQUIRES_OK(context, check_shapes(z.shape(), r_gates.shape(), r_candidate.shape(), h0.shape(), context->input(4),
                                         reverse_, &shape));
    Tensor *h, *gates, *h_last;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({shape.frames, shape.batch, shape.units}), &h));
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 1, z.shape(), &gates));
    OP_REQUIRES_OK(context, context->allocate_output(2, h0.shape(), &h_last));
    OP_REQUIRES_OK(context,
                   Device::run(context, shape, rounded_, Forward{z, r_gates, r_candidate, h0, h, gates, h_last}));
  }

 private:
  bool reverse_, rounded_;
};

template <class Device>
class GruGradOp : public OpKernel {
 public:
  explicit GruGradOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "reverse", &reverse_, "rounded", &rounded_);
    OP_REQUIRES(construction, !rounded_ || Device::rounds(),
                InvalidArgument("GRU: this device can't round the factors of products to bfloat16"));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &r_gates = context->input(0), &r_candidate = context->input(1), &h0 = context->input(2);
    const Tensor &h = context->input(4), &gates = context->input(5), &dh = context->input(6),
                 &dh_last = context->input(7);
    RtfGruShape shape;
    OP_REQUIRES_OK(context, check_shapes(gates.shape(), r_gates.shape(), r_candidate.shape(), h0.shape(),
                                         context->input(3), reverse_, &shape));
    const TensorShape all({shape.frames, shape.batch, shape.units});
    OP_REQUIRES(context, h.shape() == all && dh.shape() == all && dh_last.shape() == h0.shape(),
                InvalidArgument("GRU: the gradients do not have the shape of what they are gradients of"));
    Tensor *dz, *reset_h, *dh0;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({5}, 0, gates.shape(), &dz));
    OP_REQUIRES_OK(context, context->allocate_output(1, all, &reset_h));
    OP_REQUIRES_OK(context, context->allocate_output(2, h0.shape(), &dh0));
    OP_REQUIRES_OK(context, Device::run(context, shape, rounded_,
                                        Backward{r_gates, r_candidate, h0, h, gates, dh, dh_last, dz, reset_h, dh0}));
  }

 private:
  bool reverse_, rounded_;
};

#define RTF_REGISTER_GRU(DEVICE, T, KERNELS)                                                                           \
  REGISTER_KERNEL_BUILDER(Name("RtfGru").Device(DEVICE).TypeConstraint("T", T).HostMemory("lengths"), GruOp<KERNELS>); \
  REGISTER_KERNEL_BUILDER(Name("RtfGruGrad").Device(DEVICE).TypeConstraint("T", T).HostMemory("lengths"),              \
                          GruGradOp<KERNELS>)

RTF_REGISTER_GRU(DEVICE_CPU, DT_FLOAT, Cpu);
#if RTF_CUDA
RTF_REGISTER_GRU(DEVICE_GPU, DT_FLOAT, Gpu);
RTF_REGISTER_GRU(DEVICE_GPU, DT_BFLOAT16, Gpu);
RTF_REGISTER_GRU(DEVICE_GPU, DT_HALF, Gpu);
#endif

}  // namespace
}  // namespace rtf
