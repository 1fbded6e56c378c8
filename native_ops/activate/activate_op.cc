// Bias, activation, dropout and residual connection as TensorFlow ops. The kernels are in activate_cpu.cc and
// activate_cuda.cu.
#include "../common/tf_op.h"
#include "activate.h"
#include "function_attr.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#endif

namespace rtf {
namespace {

// Lists have no entry or one; `random` none, or key [1] and counter [2] of the generator.
REGISTER_OP("RtfActivate")
    .Attr("function: " RTF_FUNCTIONS)
    .Attr("rate: float")
    .Attr("scale: float")
    .Attr("biases: int >= 0")
    .Attr("column_factors: int >= 0")
    .Attr("residuals: int >= 0")
    .Attr("randoms: int >= 0")
    .Attr("row_lists: int >= 0 = 0")
    .Input("x: float")                         // [..., width]
    .Input("bias: biases * float")             // [width]
    .Input("factors: column_factors * float")  // [width]
    .Input("residual: residuals * float")      // as x
    .Input("random: randoms * uint64")
    .Input("numbers: row_lists * int64")  // [rows]: of the rows, for the dropout
    .Output("y: float")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      return OkStatus();
    });

REGISTER_OP("RtfActivateGrad")
    .Attr("function: " RTF_FUNCTIONS)
    .Attr("rate: float")
    .Attr("scale: float")
    .Attr("of_output: bool")
    .Attr("kepts: int >= 0")
    .Attr("biases: int >= 0")
    .Attr("column_factors: int >= 0")
    .Attr("randoms: int >= 0")
    .Attr("row_lists: int >= 0 = 0")
    .Input("dy: float")
    .Input("kept: kepts * float")  // x, or y with of_output
    .Input("bias: biases * float")
    .Input("factors: column_factors * float")
    .Input("random: randoms * uint64")
    .Input("numbers: row_lists * int64")  // [rows]: of the rows, for the dropout
    .Output("dx: float")
    .Output("dbias: biases * float")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      if (context->num_outputs() == 2) {
        DimensionHandle width = context->UnknownDim();
        if (context->RankKnown(context->input(0))) width = context->Dim(context->input(0), -1);
        context->set_output(1, context->Vector(width));
      }
      return OkStatus();
    });

REGISTER_OP("RtfGate")
    .Attr("value: " RTF_FUNCTIONS)
    .Attr("gate: " RTF_FUNCTIONS)
    .Input("x: float")   // [..., 2 * width]
    .Output("y: float")  // [..., width]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x = context->input(0), y;
      if (!context->RankKnown(x)) {
        context->set_output(0, context->UnknownShape());
        return OkStatus();
      }
      DimensionHandle width;
      TF_RETURN_IF_ERROR(context->Divide(context->Dim(x, -1), 2, /*evenly_divisible=*/true, &width));
      TF_RETURN_IF_ERROR(context->ReplaceDim(x, -1, width, &y));
      context->set_output(0, y);
      return OkStatus();
    });

REGISTER_OP("RtfGateGrad")
    .Attr("value: " RTF_FUNCTIONS)
    .Attr("gate: " RTF_FUNCTIONS)
    .Input("x: float")
    .Input("dy: float")
    .Output("dx: float")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      return OkStatus();
    });

// The sizes of a call, and where key [1] and counter [2] of the generator are; null without dropout.
struct Call {
  RtfActivate shape;
  const uint64_t *key, *counter;
};

struct Cpu {
  // What can be looked at where the kernel runs: key and counter by value, numbers of rows checked.
  static Status look_at(Call* call) {
    RtfActivate& shape = call->shape;
    if (shape.rate == 0) return OkStatus();
    shape.key = call->key[0];
    for (int i : {0, 1}) shape.counter[i] = call->counter[i];
    for (int64_t row = 0; shape.numbers && row < shape.rows; ++row)
      if (shape.numbers[row] < 0) return InvalidArgument("activate: the number of a row is ", shape.numbers[row]);
    return OkStatus();
  }

  static Status forward(OpKernelContext* context, const Call& call, const float* x, const float* bias,
                        const float* factors, const float* residual, float* y) {
    const RtfThreads threads = tf_threads(context);
    rtf_activate_f32(&call.shape, x, bias, factors, residual, y, &threads);
    return OkStatus();
  }

  static int64_t scratch_size(const Call& call) { return rtf_activate_scratch_size(&call.shape); }

  static Status backward(OpKernelContext* context, const Call& call, const float* dy, const float* kept, bool of_output,
                         const float* bias, const float* factors, float* dx, float* dbias, float* scratch) {
    const RtfThreads threads = tf_threads(context);
    rtf_activate_grad_f32(&call.shape, dy, kept, of_output, bias, factors, dx, dbias, scratch, &threads);
    return OkStatus();
  }

  static Status gate(OpKernelContext* context, int64_t rows, int64_t width, int f, int g, const float* x, float* y) {
    const RtfThreads threads = tf_threads(context);
    rtf_gate_f32(rows, width, f, g, x, y, &threads);
    return OkStatus();
  }

  static Status gate_grad(OpKernelContext* context, int64_t rows, int64_t width, int f, int g, const float* x,
                          const float* dy, float* dx) {
    const RtfThreads threads = tf_threads(context);
    rtf_gate_grad_f32(rows, width, f, g, x, dy, dx, &threads);
    return OkStatus();
  }
};

#if RTF_CUDA
struct Gpu {
  static Status look_at(Call*) { return OkStatus(); }

  static Status forward(OpKernelContext* context, const Call& call, const float* x, const float* bias,
                        const float* factors, const float* residual, float* y) {
    return gpu_status("activate", rtf_activate_cuda_f32(&call.shape, call.key, call.counter, x, bias, factors, residual,
                                                        y, gpu_stream(context)));
  }

  static int64_t scratch_size(const Call& call) { return rtf_activate_cuda_scratch_size(&call.shape); }

  static Status backward(OpKernelContext* context, const Call& call, const float* dy, const float* kept, bool of_output,
                         const float* bias, const float* factors, float* dx, float* dbias, float* scratch) {
    return gpu_status("activate", rtf_activate_grad_cuda_f32(&call.shape, call.key, call.counter, dy, kept, of_output,
                                                             bias, factors, dx, dbias, scratch, gpu_stream(context)));
  }

  static Status gate(OpKernelContext* context, int64_t rows, int64_t width, int f, int g, const float* x, float* y) {
    return gpu_status("gate", rtf_gate_cuda_f32(rows, width, f, g, x, y, gpu_stream(context)));
  }

  static Status gate_grad(OpKernelContext* context, int64_t rows, int64_t width, int f, int g, const float* x,
                          const float* dy, float* dx) {
    return gpu_status("gate", rtf_gate_grad_cuda_f32(rows, width, f, g, x, dy, dx, gpu_stream(context)));
  }
};
#endif

template <class Device>
class ActivateBase : public OpKernel {
 public:
  explicit ActivateBase(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, get_function(construction, "function", &shape_.function));
    read_attrs(construction, "rate", &shape_.rate, "scale", &shape_.scale);
    OP_REQUIRES(construction, shape_.rate >= 0 && shape_.rate < 1,
                InvalidArgument("activate: the rate of the dropout is ", shape_.rate, ", not in [0, 1)"));
  }

 protected:
  Status call_of(OpKernelContext* context, const Tensor& x, Call* call) const {
    if (x.dims() < 1) return InvalidArgument("activate: the input has to have an axis");
    *call = {shape_, nullptr, nullptr};
    RtfActivate& shape = call->shape;
    shape.width = x.dim_size(x.dims() - 1);
    shape.rows = shape.width ? x.NumElements() / shape.width : 0;
    if (shape.rate == 0) return OkStatus();
    OpInputList random, numbers;
    TF_RETURN_IF_ERROR(context->input_list("random", &random));
    if (random.size() != 2 || random[0].NumElements() != 1 || random[1].NumElements() != 2)
      return InvalidArgument("activate: dropout needs a key [1] and a counter [2]");
    call->key = random[0].flat<uint64_t>().data();
    call->counter = random[1].flat<uint64_t>().data();
    TF_RETURN_IF_ERROR(context->input_list("numbers", &numbers));
    if (numbers.size() > 1 || (numbers.size() == 1 && numbers[0].NumElements() != shape.rows))
      return InvalidArgument("activate: there are ", shape.rows, " rows, but the shape of their numbers is ",
                             numbers[0].shape().DebugString());
    if (numbers.size() == 1) shape.numbers = numbers[0].flat<int64_t>().data();
    return Device::look_at(call);
  }

  // The only entry of a list, which has to be of a shape; null if the list is empty.
  static Status optional(OpKernelContext* context, const char* name, const TensorShape& shape, const float** data) {
    OpInputList list;
    TF_RETURN_IF_ERROR(context->input_list(name, &list));
    *data = nullptr;
    if (list.size() == 0) return OkStatus();
    if (list.size() != 1 || list[0].shape() != shape)
      return InvalidArgument("activate: ", name, " has to be ", shape.DebugString(), ", but is ",
                             list[0].shape().DebugString());
    *data = floats(list[0]);
    return OkStatus();
  }

 private:
  RtfActivate shape_{};
};

template <class Device>
class ActivateOp : public ActivateBase<Device> {
 public:
  using ActivateBase<Device>::ActivateBase;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Call call;
    const float *bias, *factors, *residual;
    OP_REQUIRES_OK(context, this->call_of(context, x, &call));
    OP_REQUIRES_OK(context, this->optional(context, "bias", {call.shape.width}, &bias));
    OP_REQUIRES_OK(context, this->optional(context, "factors", {call.shape.width}, &factors));
    OP_REQUIRES_OK(context, this->optional(context, "residual", x.shape(), &residual));
    Tensor* y;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    OP_REQUIRES_OK(context, Device::forward(context, call, floats(x), bias, factors, residual, floats(y)));
  }
};

template <class Device>
class ActivateGradOp : public ActivateBase<Device> {
 public:
  explicit ActivateGradOp(OpKernelConstruction* construction) : ActivateBase<Device>(construction) {
    read_attrs(construction, "of_output", &of_output_);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& dy = context->input(0);
    Call call;
    const float *kept, *bias, *factors;
    OP_REQUIRES_OK(context, this->call_of(context, dy, &call));
    const int64_t width = call.shape.width;
    OP_REQUIRES_OK(context, this->optional(context, "kept", dy.shape(), &kept));
    OP_REQUIRES_OK(context, this->optional(context, "bias", {width}, &bias));
    OP_REQUIRES_OK(context, this->optional(context, "factors", {width}, &factors));
    // a tensor without numbers may have no memory
    OP_REQUIRES(context, kept || dy.NumElements() == 0 || call.shape.function == RTF_IDENTITY,
                InvalidArgument("activate: the gradient needs the input or the output"));
    Tensor *dx, *dbias = nullptr, scratch;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, dy.shape(), &dx));
    float *sums = nullptr, *parts = nullptr;
    if (bias) {
      OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({width}), &dbias));
      OP_REQUIRES_OK(context, allocate_scratch(context, Device::scratch_size(call), &scratch));
      sums = floats(dbias);
      parts = floats(&scratch);
    }
    OP_REQUIRES_OK(
        context, Device::backward(context, call, floats(dy), kept, of_output_, bias, factors, floats(dx), sums, parts));
  }

 private:
  bool of_output_;
};

class GateBase : public OpKernel {
 public:
  explicit GateBase(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, get_function(construction, "value", &value_));
    OP_REQUIRES_OK(construction, get_function(construction, "gate", &gate_));
  }

 protected:
  // The shape of the result.
  static Status half_of(const TensorShape& x, TensorShape* half) {
    if (x.dims() < 1 || x.dim_size(x.dims() - 1) % 2)
      return InvalidArgument("gate: the input has to have an even number of units, but is ", x.DebugString());
    *half = x;
    half->set_dim(x.dims() - 1, x.dim_size(x.dims() - 1) / 2);
    return OkStatus();
  }

  int value_, gate_;
};

template <class Device>
class GateOp : public GateBase {
 public:
  using GateBase::GateBase;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    TensorShape half;
    OP_REQUIRES_OK(context, half_of(x.shape(), &half));
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, half, &y));
    if (y->NumElements() == 0) return;
    const int64_t width = half.dim_size(half.dims() - 1);
    OP_REQUIRES_OK(context,
                   Device::gate(context, y->NumElements() / width, width, value_, gate_, floats(x), floats(y)));
  }
};

template <class Device>
class GateGradOp : public GateBase {
 public:
  using GateBase::GateBase;

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &dy = context->input(1);
    TensorShape half;
    OP_REQUIRES_OK(context, half_of(x.shape(), &half));
    OP_REQUIRES(
        context, dy.shape() == half,
        InvalidArgument("gate: the gradient has to be ", half.DebugString(), ", but is ", dy.shape().DebugString()));
    Tensor* dx;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &dx));
    if (dy.NumElements() == 0) return;
    const int64_t width = half.dim_size(half.dims() - 1);
    OP_REQUIRES_OK(context, Device::gate_grad(context, dy.NumElements() / width, width, value_, gate_, floats(x),
                                              floats(dy), floats(dx)));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfActivate").Device(DEVICE_CPU), ActivateOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfActivateGrad").Device(DEVICE_CPU), ActivateGradOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfGate").Device(DEVICE_CPU), GateOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfGateGrad").Device(DEVICE_CPU), GateGradOp<Cpu>);
#if RTF_CUDA
REGISTER_KERNEL_BUILDER(Name("RtfActivate").Device(DEVICE_GPU), ActivateOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfActivateGrad").Device(DEVICE_GPU), ActivateGradOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfGate").Device(DEVICE_GPU), GateOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfGateGrad").Device(DEVICE_GPU), GateGradOp<Gpu>);
#endif

}  // namespace
}  // namespace rtf
