// Depthwise convolution along time as TensorFlow ops. The kernels are in depthwise_cpu.cc and depthwise_cuda.cu.
#include <algorithm>

#include "../common/tf_op.h"
#include "depthwise.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#endif

namespace rtf {
namespace {

// left and right: zeros around the frames. A list has no entry or one.
REGISTER_OP("RtfDepthwise")
    .Attr("dilation: int >= 1")
    .Attr("left: int >= 0")
    .Attr("right: int >= 0")
    .Attr("biases: int >= 0")
    .Input("x: float")              // [batch, frames, channels]
    .Input("w: float")              // [taps, channels]
    .Input("bias: biases * float")  // [channels]
    .Output("y: float")             // [batch, frames + left + right - (taps - 1) * dilation, channels]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x, y;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &x));
      TF_RETURN_IF_ERROR(context->ReplaceDim(x, 1, context->UnknownDim(), &y));
      context->set_output(0, y);
      return OkStatus();
    });

REGISTER_OP("RtfDepthwiseGrad")
    .Attr("dilation: int >= 1")
    .Attr("left: int >= 0")
    .Attr("right: int >= 0")
    .Input("dy: float")
    .Input("x: float")
    .Input("w: float")
    .Output("dx: float")
    .Output("dw: float")
    .Output("dbias: float")
    .SetShapeFn([](InferenceContext* context) {
      DimensionHandle channels = context->UnknownDim();
      if (context->RankKnown(context->input(2))) channels = context->Dim(context->input(2), -1);
      context->set_output(0, context->input(1));
      context->set_output(1, context->input(2));
      context->set_output(2, context->Vector(channels));
      return OkStatus();
    });

struct Cpu {
  static Status forward(OpKernelContext* context, const RtfDepthwise& shape, const float* x, const float* w,
                        const float* bias, float* y) {
    const RtfThreads threads = tf_threads(context);
    Tensor scratch;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_depthwise_scratch_size(&shape, threads.n_threads), &scratch));
    rtf_depthwise_f32(&shape, x, w, bias, y, floats(&scratch), &threads);
    return OkStatus();
  }

  static Status backward(OpKernelContext* context, const RtfDepthwise& shape, const float* dy, const float* x,
                         const float* w, float* dx, float* dw, float* dbias) {
    const RtfThreads threads = tf_threads(context);
    Tensor sums, scratch;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_depthwise_sums_size(&shape), &sums));
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_depthwise_scratch_size(&shape, threads.n_threads), &scratch));
    rtf_depthwise_grad_f32(&shape, dy, x, w, dx, dw, dbias, floats(&sums), floats(&scratch), &threads);
    return OkStatus();
  }
};

#if RTF_CUDA
struct Gpu {
  static Status forward(OpKernelContext* context, const RtfDepthwise& shape, const float* x, const float* w,
                        const float* bias, float* y) {
    return gpu_status("depthwise", rtf_depthwise_cuda_f32(&shape, x, w, bias, y, gpu_stream(context)));
  }

  static Status backward(OpKernelContext* context, const RtfDepthwise& shape, const float* dy, const float* x,
                         const float* w, float* dx, float* dw, float* dbias) {
    Tensor scratch;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_depthwise_cuda_scratch_size(&shape), &scratch));
    return gpu_status("depthwise", rtf_depthwise_grad_cuda_f32(&shape, dy, x, w, dx, dw, dbias, floats(&scratch),
                                                               gpu_stream(context)));
  }
};
#endif

class DepthwiseBase : public OpKernel {
 public:
  explicit DepthwiseBase(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "dilation", &shape_.dilation, "left", &shape_.left, "right", &right_);
  }

 protected:
  Status sizes_of(const Tensor& x, const Tensor& w, RtfDepthwise* shape) const {
    if (x.dims() != 3 || w.dims() != 2 || w.dim_size(0) == 0 || w.dim_size(1) != x.dim_size(2))
      return InvalidArgument("depthwise: x has to be [batch, frames, channels] and w [taps, channels], but they are ",
                             x.shape().DebugString(), " and ", w.shape().DebugString());
    *shape = shape_;
    shape->batch = x.dim_size(0);
    shape->frames = x.dim_size(1);
    shape->channels = x.dim_size(2);
    shape->taps = w.dim_size(0);
    const int64_t reach = (shape->taps - 1) * shape->dilation;
    shape->out_frames = std::max<int64_t>(0, shape->frames + shape->left + right_ - reach);
    return OkStatus();
  }

  RtfDepthwise shape_{};
  int64_t right_ = 0;
};

template <class Device>
class DepthwiseOp : public DepthwiseBase {
 public:
  using DepthwiseBase::DepthwiseBase;

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &w = context->input(1);
    RtfDepthwise shape;
    OP_REQUIRES_OK(context, sizes_of(x, w, &shape));
    OpInputList bias;
    OP_REQUIRES_OK(context, context->input_list("bias", &bias));
    const bool has_bias = bias.size() != 0;
    OP_REQUIRES(context, !has_bias || (bias.size() == 1 && bias[0].shape() == TensorShape({shape.channels})),
                InvalidArgument("depthwise: the bias has to be [", shape.channels, "], but is ",
                                bias[0].shape().DebugString()));
    Tensor* y;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({shape.batch, shape.out_frames, shape.channels}), &y));
    OP_REQUIRES_OK(context, Device::forward(context, shape, floats(x), floats(w), has_bias ? floats(bias[0]) : nullptr,
                                            floats(y)));
  }
};

template <class Device>
class DepthwiseGradOp : public DepthwiseBase {
 public:
  using DepthwiseBase::DepthwiseBase;

  void Compute(OpKernelContext* context) override {
    const Tensor &dy = context->input(0), &x = context->input(1), &w = context->input(2);
    RtfDepthwise shape;
    OP_REQUIRES_OK(context, sizes_of(x, w, &shape));
    OP_REQUIRES(context, dy.shape() == TensorShape({shape.batch, shape.out_frames, shape.channels}),
                InvalidArgument("depthwise: the gradient is ", dy.shape().DebugString(), ", but the output has ",
                                shape.out_frames, " frames of ", shape.channels, " channels"));
    Tensor *dx, *dw, *dbias;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &dx));
    OP_REQUIRES_OK(context, context->allocate_output(1, w.shape(), &dw));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({shape.channels}), &dbias));
    OP_REQUIRES_OK(context, Device::backward(context, shape, floats(dy), floats(x), floats(w), floats(dx), floats(dw),
                                             floats(dbias)));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfDepthwise").Device(DEVICE_CPU), DepthwiseOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfDepthwiseGrad").Device(DEVICE_CPU), DepthwiseGradOp<Cpu>);
#if RTF_CUDA
REGISTER_KERNEL_BUILDER(Name("RtfDepthwise").Device(DEVICE_GPU), DepthwiseOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfDepthwiseGrad").Device(DEVICE_GPU), DepthwiseGradOp<Gpu>);
#endif

}  // namespace
}  // namespace rtf
