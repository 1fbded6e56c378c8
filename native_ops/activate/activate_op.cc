// Bias, activation, dropout and residual connection as TensorFlow ops. The kernels are in activate_cpu.cc.
#include "../common/tf_op.h"
#include "activate.h"

namespace rtf {
namespace {

#define RTF_FUNCTIONS "{'identity', 'relu', 'gelu', 'swish', 'tanh', 'sigmoid'}"

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

#undef RTF_FUNCTIONS

Status get_function(OpKernelConstruction* construction, const char* attr, int* function) {
  static const char* const kNames[] = {"identity", "relu", "gelu", "swish", "tanh", "sigmoid"};
  std::string name;
  TF_RETURN_IF_ERROR(construction->GetAttr(attr, &name));
  for (int i = 0; i < 6; ++i)
    if (name == kNames[i]) *function = i;
  return OkStatus();
}

class ActivateBase : public OpKernel {
 public:
  explicit ActivateBase(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, get_function(construction, "function", &shape_.function));
    read_attrs(construction, "rate", &shape_.rate, "scale", &shape_.scale);
    OP_REQUIRES(construction, shape_.rate >= 0 && shape_.rate < 1,
                InvalidArgument("activate: the rate of the dropout is ", shape_.rate, ", not in [0, 1)"));
  }

 protected:
  // The sizes of a call and the state of the generator.
  Status shape_of(OpKernelContext* context, const Tensor& x, RtfActivate* shape) const {
    if (x.dims() < 1) return InvalidArgument("activate: the input has to have an axis");
    *shape = shape_;
    shape->width = x.dim_size(x.dims() - 1);
    shape->rows = shape->width ? x.NumElements() / shape->width : 0;
    OpInputList random;
    TF_RETURN_IF_ERROR(context->input_list("random", &random));
    if (shape->rate == 0) return OkStatus();
    if (random.size() != 2 || random[0].NumElements() != 1 || random[1].NumElements() != 2)
      return InvalidArgument("activate: dropout needs a key [1] and a counter [2]");
    shape->key = random[0].flat<uint64_t>()(0);
    for (int i : {0, 1}) shape->counter[i] = random[1].flat<uint64_t>()(i);
    OpInputList numbers;
    TF_RETURN_IF_ERROR(context->input_list("numbers", &numbers));
    if (numbers.size() == 0) return OkStatus();
    if (numbers.size() != 1 || numbers[0].NumElements() != shape->rows)
      return InvalidArgument("activate: there are ", shape->rows, " rows, but the shape of their numbers is ",
                             numbers[0].shape().DebugString());
    shape->numbers = numbers[0].flat<int64_t>().data();
    for (int64_t row = 0; row < shape->rows; ++row)
      if (shape->numbers[row] < 0) return InvalidArgument("activate: the number of a row is ", shape->numbers[row]);
    return OkStatus();
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

class ActivateOp : public ActivateBase {
 public:
  using ActivateBase::ActivateBase;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    RtfActivate shape;
    const float *bias, *factors, *residual;
    OP_REQUIRES_OK(context, shape_of(context, x, &shape));
    OP_REQUIRES_OK(context, optional(context, "bias", {shape.width}, &bias));
    OP_REQUIRES_OK(context, optional(context, "factors", {shape.width}, &factors));
    OP_REQUIRES_OK(context, optional(context, "residual", x.shape(), &residual));
    Tensor* y;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    const RtfThreads threads = tf_threads(context);
    rtf_activate_f32(&shape, floats(x), bias, factors, residual, floats(y), &threads);
  }
};

class ActivateGradOp : public ActivateBase {
 public:
  explicit ActivateGradOp(OpKernelConstruction* construction) : ActivateBase(construction) {
    read_attrs(construction, "of_output", &of_output_);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& dy = context->input(0);
    RtfActivate shape;
    const float *kept, *bias, *factors;
    OP_REQUIRES_OK(context, shape_of(context, dy, &shape));
    OP_REQUIRES_OK(context, optional(context, "kept", dy.shape(), &kept));
    OP_REQUIRES_OK(context, optional(context, "bias", {shape.width}, &bias));
    OP_REQUIRES_OK(context, optional(context, "factors", {shape.width}, &factors));
    OP_REQUIRES(context, kept || shape.function == RTF_IDENTITY,
                InvalidArgument("activate: the gradient needs the input or the output"));
    Tensor *dx, *dbias = nullptr, scratch;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, dy.shape(), &dx));
    float *sums = nullptr, *parts = nullptr;
    if (bias) {
      OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({shape.width}), &dbias));
      OP_REQUIRES_OK(context, allocate_scratch(context, rtf_activate_scratch_size(&shape), &scratch));
      sums = floats(dbias);
      parts = floats(&scratch);
    }
    const RtfThreads threads = tf_threads(context);
    rtf_activate_grad_f32(&shape, floats(dy), kept, of_output_, bias, factors, floats(dx), sums, parts, &threads);
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
    const RtfThreads threads = tf_threads(context);
    rtf_gate_f32(y->NumElements() / width, width, value_, gate_, floats(x), floats(y), &threads);
  }
};

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
    const RtfThreads threads = tf_threads(context);
    rtf_gate_grad_f32(dy.NumElements() / width, width, value_, gate_, floats(x), floats(dy), floats(dx), &threads);
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfActivate").Device(DEVICE_CPU), ActivateOp);
REGISTER_KERNEL_BUILDER(Name("RtfActivateGrad").Device(DEVICE_CPU), ActivateGradOp);
REGISTER_KERNEL_BUILDER(Name("RtfGate").Device(DEVICE_CPU), GateOp);
REGISTER_KERNEL_BUILDER(Name("RtfGateGrad").Device(DEVICE_CPU), GateGradOp);

}  // namespace
}  // namespace rtf
