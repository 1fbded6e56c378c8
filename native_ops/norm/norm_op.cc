// Layer normalisation as TensorFlow ops. The kernels are in norm_cpu.cc and norm_cuda.cu.
#include "../common/tf_op.h"
#include "norm.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#endif

namespace rtf {
namespace {

// Lists have no entry or one.
REGISTER_OP("RtfNorm")
    .Attr("epsilon: float")
    .Attr("scales: int >= 0")
    .Attr("biases: int >= 0")
    .Input("x: float")               // [..., width]
    .Input("scale: scales * float")  // [width]
    .Input("bias: biases * float")   // [width]
    .Output("y: float")
    .Output("mean: float")    // [rows]
    .Output("factor: float")  // [rows]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      for (int i : {1, 2}) context->set_output(i, context->Vector(InferenceContext::kUnknownDim));
      return OkStatus();
    });

REGISTER_OP("RtfNormGrad")
    .Attr("scales: int >= 0")
    .Input("dy: float")
    .Input("x: float")
    .Input("mean: float")
    .Input("factor: float")
    .Input("scale: scales * float")
    .Output("dx: float")
    .Output("dscale: float")  // [width]
    .Output("dbias: float")   // [width]
    .SetShapeFn([](InferenceContext* context) {
      DimensionHandle width = context->UnknownDim();
      if (context->RankKnown(context->input(1))) width = context->Dim(context->input(1), -1);
      context->set_output(0, context->input(1));
      for (int i : {1, 2}) context->set_output(i, context->Vector(width));
      return OkStatus();
    });

Status sizes_of(const Tensor& x, RtfNorm* shape) {
  if (x.dims() < 1 || x.dim_size(x.dims() - 1) == 0)
    return InvalidArgument("norm: the input has to have features, but is ", x.shape().DebugString());
  shape->width = x.dim_size(x.dims() - 1);
  shape->rows = x.NumElements() / shape->width;
  return OkStatus();
}

// The only entry of a list of inputs, null if it is empty.
Status optional(OpKernelContext* context, const char* name, int64_t width, const float** data) {
  OpInputList list;
  TF_RETURN_IF_ERROR(context->input_list(name, &list));
  *data = nullptr;
  if (list.size() == 0) return OkStatus();
  if (list.size() != 1 || list[0].shape() != TensorShape({width}))
    return InvalidArgument("norm: ", name, " has to be [", width, "], but is ", list[0].shape().DebugString());
  *data = floats(list[0]);
  return OkStatus();
}

struct Cpu {
  static Status forward(OpKernelContext* context, const RtfNorm& shape, const float* x, const float* scale,
                        const float* bias, float* y, float* mean, float* factor) {
    const RtfThreads threads = tf_threads(context);
    rtf_norm_f32(&shape, x, scale, bias, y, mean, factor, &threads);
    return OkStatus();
  }

  static int64_t scratch_size(const RtfNorm& shape) { return rtf_norm_scratch_size(&shape); }

  static Status backward(OpKernelContext* context, const RtfNorm& shape, const float* dy, const float* x,
                         const float* scale, const float* mean, const float* factor, float* dx, float* dscale,
                         float* dbias, float* scratch) {
    const RtfThreads threads = tf_threads(context);
    rtf_norm_grad_f32(&shape, dy, x, scale, mean, factor, dx, dscale, dbias, scratch, &threads);
    return OkStatus();
  }
};

#if RTF_CUDA
struct Gpu {
  static Status forward(OpKernelContext* context, const RtfNorm& shape, const float* x, const float* scale,
                        const float* bias, float* y, float* mean, float* factor) {
    return gpu_status("norm", rtf_norm_cuda_f32(&shape, x, scale, bias, y, mean, factor, gpu_stream(context)));
  }

  static int64_t scratch_size(const RtfNorm& shape) { return rtf_norm_cuda_scratch_size(&shape); }

  static Status backward(OpKernelContext* context, const RtfNorm& shape, const float* dy, const float* x,
                         const float* scale, const float* mean, const float* factor, float* dx, float* dscale,
                         float* dbias, float* scratch) {
    return gpu_status("norm", rtf_norm_grad_cuda_f32(&shape, dy, x, scale, mean, factor, dx, dscale, dbias, scratch,
                                                     gpu_stream(context)));
  }
};
#endif

template <class Device>
class NormOp : public OpKernel {
 public:
  explicit NormOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "epsilon", &shape_.epsilon);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    RtfNorm shape = shape_;
    const float *scale, *bias;
    OP_REQUIRES_OK(context, sizes_of(x, &shape));
    OP_REQUIRES_OK(context, optional(context, "scale", shape.width, &scale));
    OP_REQUIRES_OK(context, optional(context, "bias", shape.width, &bias));
    Tensor *y, *mean, *factor;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({shape.rows}), &mean));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({shape.rows}), &factor));
    OP_REQUIRES_OK(context,
                   Device::forward(context, shape, floats(x), scale, bias, floats(y), floats(mean), floats(factor)));
  }

 private:
  RtfNorm shape_{};
};

template <class Device>
class NormGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &dy = context->input(0), &x = context->input(1), &mean = context->input(2),
                 &factor = context->input(3);
    RtfNorm shape{};
    const float* scale;
    OP_REQUIRES_OK(context, sizes_of(x, &shape));
    OP_REQUIRES_OK(context, optional(context, "scale", shape.width, &scale));
    OP_REQUIRES(context,
                dy.shape() == x.shape() && mean.NumElements() == shape.rows && factor.NumElements() == shape.rows,
                InvalidArgument("norm: the gradient is ", dy.shape().DebugString(), ", but the input is ",
                                x.shape().DebugString()));
    Tensor *dx, *dscale, *dbias, scratch;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &dx));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({shape.width}), &dscale));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({shape.width}), &dbias));
    OP_REQUIRES_OK(context, allocate_scratch(context, Device::scratch_size(shape), &scratch));
    OP_REQUIRES_OK(context, Device::backward(context, shape, floats(dy), floats(x), scale, floats(mean), floats(factor),
                                             floats(dx), floats(dscale), floats(dbias), floats(&scratch)));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfNorm").Device(DEVICE_CPU), NormOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfNormGrad").Device(DEVICE_CPU), NormGradOp<Cpu>);
#if RTF_CUDA
REGISTER_KERNEL_BUILDER(Name("RtfNorm").Device(DEVICE_GPU), NormOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfNormGrad").Device(DEVICE_GPU), NormGradOp<Gpu>);
#endif

}  // namespace
}  // namespace rtf
