// The sLSTM as TensorFlow ops: shapes, memory, and the threads or the stream. The kernels are in slstm_cpu.cc and
// slstm_cuda.cu; heads run one after the other.
#include "../common/tf_sequences.h"
#include "slstm.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#include "slstm_cuda.h"
#endif

namespace rtf {
namespace {

constexpr int kParts = 4;  // of a state: c, n, m, h; the attribute `parts` of the ops is this number

// Lengths are in host memory. If rounded, the factors of products with the recurrent weights are, to bfloat16, in
// kernels for CPUs with AVX512-BF16.
REGISTER_OP("RtfSlstm")
    .Attr("reverse: bool")
    .Attr("exp_forget: bool")
    .Attr("rounded: bool = false")
    .Attr("parts: int >= 1")
    .Input("z: float")                // [K, T, B, 4H]: W x + b of K heads, gates i, f, z, o
    .Input("r: float")                // [K, H, 4H]
    .Input("initial: parts * float")  // [K, B, H] each
    .Input("lengths: int32")          // [B]
    .Output("states: parts * float")  // [K, T, B, H] each
    .Output("gates: float")           // [K, T, B, 4H]
    .Output("last: parts * float")    // [K, B, H] each
    .SetShapeFn([](InferenceContext* context) {
      if (context->num_inputs() != kParts + 3) return InvalidArgument("sLSTM: a state has 4 parts");
      ShapeHandle z, weights;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 4, &z));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 3, &weights));
      const ShapeHandle all =
          context->MakeShape({context->Dim(z, 0), context->Dim(z, 1), context->Dim(z, 2), context->Dim(weights, 1)});
      for (int part = 0; part < kParts; ++part) {
        context->set_output(part, all);
        context->set_output(kParts + 1 + part, context->input(2 + part));
      }
      context->set_output(kParts, z);
      return OkStatus();
    });

REGISTER_OP("RtfSlstmGrad")
    .Attr("reverse: bool")
    .Attr("exp_forget: bool")
    .Attr("rounded: bool = false")
    .Attr("parts: int >= 1")
    .Attr("sums: int >= 1")
    .Input("gates: float")
    .Input("r: float")
    .Input("initial: parts * float")
    .Input("lengths: int32")
    .Input("states: sums * float")  // c, n, m
    .Input("dh: float")
    .Input("dlast: parts * float")
    .Output("dz: float")                // [K, T, B, 4H]
    .Output("dinitial: parts * float")  // [K, B, H] each
    .SetShapeFn([](InferenceContext* context) {
      if (context->num_outputs() != kParts + 1) return InvalidArgument("sLSTM: a state has 4 parts");
      context->set_output(0, context->input(0));
      for (int part = 0; part < kParts; ++part) context->set_output(1 + part, context->input(2 + part));
      return OkStatus();
    });

// The sizes of a call for one head, and the number of heads, or an error if they are inconsistent.
Status read_shapes(OpKernelContext* context, const Tensor& gates, const OpInputList& initial, bool reverse,
                   int64_t* heads, RtfSLstmShape* shape) {
  if (initial.size() != kParts) return InvalidArgument("sLSTM: a state has 4 parts, but got ", initial.size());
  const Tensor& r = context->input(1);
  const int64_t units = r.dims() == 3 ? r.dim_size(1) : 0;
  if (units < 1 || r.dim_size(2) != 4 * units)
    return InvalidArgument(
        "sLSTM: recurrent weights have to be [heads, units, 4 * units] with at least one unit, but are ",
        r.shape().DebugString());
  *heads = r.dim_size(0);
  if (gates.dims() != 4 || gates.dim_size(0) != *heads || gates.dim_size(3) != 4 * units)
    return InvalidArgument("sLSTM: input has to be [", *heads, ", time, batch, ", 4 * units, "], but is ",
                           gates.shape().DebugString());
  const int64_t batch = gates.dim_size(2);
  for (int part = 0; part < kParts; ++part) {
    if (initial[part].shape() != TensorShape({*heads, batch, units}))
      return InvalidArgument("sLSTM: the initial state has to be [", *heads, ", ", batch, ", ", units, "], but is ",
                             initial[part].shape().DebugString());
  }
  return read_sequences("sLSTM", gates.dim_size(1), batch, units, context->input(2 + kParts), reverse, shape);
}

const float* in(const Tensor& tensor, int64_t offset) { return floats(tensor) + offset; }

float* out(Tensor* tensor, int64_t offset) { return floats(tensor) + offset; }

RtfSLstmState parts(Tensor* const* x, int64_t offset) {
  return RtfSLstmState{out(x[0], offset), out(x[1], offset), out(x[2], offset), out(x[3], offset)};
}

RtfSLstmConstState const_parts(const OpInputList& x, int64_t offset) {
  return RtfSLstmConstState{in(x[0], offset), in(x[1], offset), in(x[2], offset),
                            x.size() == kParts ? in(x[3], offset) : nullptr};
}

// The arrays of a pass for one head.
struct Forward {
  const float *z, *r;
  RtfSLstmConstState initial;
  RtfSLstmState states, last;
  float* gates;
};

struct Backward {
  const float* r;
  RtfSLstmConstState initial, states, dlast;
  const float *gates, *dh;
  float* dz;
  RtfSLstmState dinitial;
};

// Runs the CPU kernels on TensorFlow's threads, with scratch memory from TensorFlow.
struct Cpu {
  static bool rounds() { return rtf_slstm_rounds(); }

  static Status allocate(OpKernelContext* context, const RtfSLstmShape& shape, bool rounded, bool, Tensor* memory) {
    return allocate_scratch(context, rtf_slstm_scratch_size(&shape, rounded), memory);
  }

  static Status run(OpKernelContext* context, const RtfSLstmShape& shape, int rounded, int exp_forget, const Forward& x,
                    Tensor* memory) {
    const RtfThreads threads = tf_threads(context);
    rtf_slstm_forward_f32(&shape, rounded, exp_forget, x.z, x.r, &x.initial, &x.states, x.gates, &x.last,
                          floats(memory), &threads);
    return OkStatus();
  }

  static Status run(OpKernelContext* context, const RtfSLstmShape& shape, int rounded, int exp_forget,
                    const Backward& x, Tensor* memory) {
    const RtfThreads threads = tf_threads(context);
    rtf_slstm_backward_f32(&shape, rounded, exp_forget, x.r, &x.initial, &x.states, x.gates, x.dh, &x.dlast, x.dz,
                           &x.dinitial, floats(memory), &threads);
    return OkStatus();
  }
};

#if RTF_CUDA
// Runs the GPU kernels on TensorFlow's stream.
struct Gpu {
  static bool rounds() { return false; }

  static RtfNumbers numbers(OpKernelContext* context) { return gpu_numbers(context->input(0)); }

  static Status allocate(OpKernelContext* context, const RtfSLstmShape& shape, bool, bool backward, Tensor* memory) {
    int64_t bytes;
    TF_RETURN_IF_ERROR(gpu_status("sLSTM", rtf_slstm_cuda_workspace(&shape, numbers(context), backward, &bytes)));
    return gpu_workspace(context, bytes, memory);
  }

  static Status run(OpKernelContext* context, const RtfSLstmShape& shape, int, int exp_forget, const Forward& x,
                    Tensor* memory) {
    return gpu_status(
        "sLSTM", rtf_slstm_forward_cuda(&shape, numbers(context), exp_forget, x.z, x.r, &x.initial, &x.states, x.gates,
                                        &x.last, gpu_memory(*memory), gpu_stream(context)));
  }

  static Status run(OpKernelContext* context, const RtfSLstmShape& shape, int, int exp_forget, const Backward& x,
                    Tensor* memory) {
    return gpu_status(
        "sLSTM", rtf_slstm_backward_cuda(&shape, numbers(context), exp_forget, x.r, &x.initial, &x.states, x.gates,
                                         x.dh, &x.dlast, x.dz, &x.dinitial, gpu_memory(*memory), gpu_stream(context)));
  }
};
#endif

template <class Device>
class SLstmBase : public OpKernel {
 public:
  explicit SLstmBase(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "reverse", &reverse_, "exp_forget", &exp_forget_, "rounded", &rounded_);
    OP_REQUIRES(construction, !rounded_ || Device::rounds(),
                InvalidArgument("sLSTM: this device can't round the factors of products to bfloat16"));
  }

 protected:
  static Status allocate(OpKernelContext* context, int first, const TensorShape& shape, Tensor** tensors) {
    for (int part = 0; part < kParts; ++part)
      TF_RETURN_IF_ERROR(context->allocate_output(first + part, shape, &tensors[part]));
    return OkStatus();
  }

  bool reverse_, exp_forget_, rounded_;
};

template <class Device>
class SLstmOp : public SLstmBase<Device> {
 public:
  using SLstmBase<Device>::SLstmBase;

  void Compute(OpKernelContext* context) override {
    const Tensor &z = context->input(0), &r = context->input(1);
    OpInputList initial;
    OP_REQUIRES_OK(context, context->input_list("initial", &initial));
    RtfSLstmShape shape;
    int64_t heads;
    OP_REQUIRES_OK(context, read_shapes(context, z, initial, this->reverse_, &heads, &shape));
    const int64_t H = shape.units;
    Tensor *states[kParts], *gates, *last[kParts], memory;
    OP_REQUIRES_OK(context, this->allocate(context, 0, TensorShape({heads, shape.frames, shape.batch, H}), states));
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, kParts, z.shape(), &gates));
    OP_REQUIRES_OK(context, this->allocate(context, kParts + 1, initial[0].shape(), last));
    OP_REQUIRES_OK(context, Device::allocate(context, shape, this->rounded_, false, &memory));
    const int64_t of_state = shape.batch * H, of_all = shape.frames * of_state;
    for (int64_t head = 0; head < heads; ++head) {
      const Forward pass = {
          in(z, head * 4 * of_all),     in(r, head * 4 * H * H),      const_parts(initial, head * of_state),
          parts(states, head * of_all), parts(last, head * of_state), out(gates, head * 4 * of_all)};
      OP_REQUIRES_OK(context, Device::run(context, shape, this->rounded_, this->exp_forget_, pass, &memory));
    }
  }
};

template <class Device>
class SLstmGradOp : public SLstmBase<Device> {
 public:
  using SLstmBase<Device>::SLstmBase;

  void Compute(OpKernelContext* context) override {
    const Tensor &gates = context->input(0), &r = context->input(1);
    OpInputList initial, states, dlast;
    OP_REQUIRES_OK(context, context->input_list("initial", &initial));
    OP_REQUIRES_OK(context, context->input_list("states", &states));
    OP_REQUIRES_OK(context, context->input_list("dlast", &dlast));
    RtfSLstmShape shape;
    int64_t heads;
    OP_REQUIRES_OK(context, read_shapes(context, gates, initial, this->reverse_, &heads, &shape));
    const int64_t H = shape.units;
    const Tensor& dh = context->input(kParts + 6);
    const TensorShape all({heads, shape.frames, shape.batch, H});
    bool fits = dh.shape() == all && states.size() == kParts - 1 && dlast.size() == kParts;
    for (const Tensor& part : states) fits = fits && part.shape() == all;
    for (const Tensor& part : dlast) fits = fits && part.shape() == initial[0].shape();
    OP_REQUIRES(context, fits,
                InvalidArgument("sLSTM: the gradients do not have the shape of what they are gradients of"));
    Tensor *dz, *dinitial[kParts], memory;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, gates.shape(), &dz));
    OP_REQUIRES_OK(context, this->allocate(context, 1, initial[0].shape(), dinitial));
    OP_REQUIRES_OK(context, Device::allocate(context, shape, this->rounded_, true, &memory));
    const int64_t of_state = shape.batch * H, of_all = shape.frames * of_state;
    for (int64_t head = 0; head < heads; ++head) {
      const Backward pass = {in(r, head * 4 * H * H),
                             const_parts(initial, head * of_state),
                             const_parts(states, head * of_all),
                             const_parts(dlast, head * of_state),
                             in(gates, head * 4 * of_all),
                             in(dh, head * of_all),
                             out(dz, head * 4 * of_all),
                             parts(dinitial, head * of_state)};
      OP_REQUIRES_OK(context, Device::run(context, shape, this->rounded_, this->exp_forget_, pass, &memory));
    }
  }
};

#define RTF_REGISTER_SLSTM(DEVICE, KERNELS)                                                         \
  REGISTER_KERNEL_BUILDER(Name("RtfSlstm").Device(DEVICE).HostMemory("lengths"), SLstmOp<KERNELS>); \
  REGISTER_KERNEL_BUILDER(Name("RtfSlstmGrad").Device(DEVICE).HostMemory("lengths"), SLstmGradOp<KERNELS>)

RTF_REGISTER_SLSTM(DEVICE_CPU, Cpu);
#if RTF_CUDA
RTF_REGISTER_SLSTM(DEVICE_GPU, Gpu);
#endif

}  // namespace
}  // namespace rtf
