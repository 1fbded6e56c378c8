// Batch normalisation as TensorFlow ops. The kernels are in batch_norm_cpu.cc and batch_norm_cuda.cu.
#include "batch_norm.h"
#include "function_attr.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#endif

namespace rtf {
namespace {

// Lists have no entry or one. Moments have no gradient: that of RtfBatchNorm takes them as functions of x.
REGISTER_OP("RtfBatchMoments")
    .Attr("masks: int >= 0")
    .Input("x: float")            // [..., width]
    .Input("mask: masks * bool")  // [rows]
    .Output("mean: float")        // [width]
    .Output("variance: float")    // [width]
    .SetShapeFn([](InferenceContext* context) {
      DimensionHandle width = context->UnknownDim();
      if (context->RankKnown(context->input(0))) width = context->Dim(context->input(0), -1);
      for (int i : {0, 1}) context->set_output(i, context->Vector(width));
      return OkStatus();
    });

REGISTER_OP("RtfBatchNorm")
    .Attr("epsilon: float")
    .Attr("function: " RTF_FUNCTIONS)
    .Attr("masks: int >= 0")
    .Attr("scales: int >= 0")
    .Attr("shifts: int >= 0")
    .Input("x: float")         // [..., width]
    .Input("mean: float")      // [width]
    .Input("variance: float")  // [width]
    .Input("mask: masks * bool")
    .Input("scale: scales * float")  // [width]
    .Input("shift: shifts * float")  // [width]
    .Output("y: float")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      return OkStatus();
    });

REGISTER_OP("RtfBatchNormGrad")
    .Attr("epsilon: float")
    .Attr("function: " RTF_FUNCTIONS)
    .Attr("masks: int >= 0")
    .Attr("scales: int >= 0")
    .Attr("shifts: int >= 0")
    .Input("x: float")
    .Input("mean: float")
    .Input("variance: float")
    .Input("mask: masks * bool")
    .Input("scale: scales * float")
    .Input("shift: shifts * float")
    .Input("dy: float")
    .Output("dx: float")
    .Output("dscale: float")  // [width]
    .Output("dshift: float")  // [width]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      for (int i : {1, 2}) context->set_output(i, context->input(1));
      return OkStatus();
    });

// The sizes and the mask of a call.
Status sizes_of(OpKernelContext* context, RtfBatchNorm* shape) {
  const Tensor& x = context->input(0);
  if (x.dims() < 1 || x.dim_size(x.dims() - 1) == 0)
    return InvalidArgument("batch norm: the input has to have features, but is ", x.shape().DebugString());
  shape->width = x.dim_size(x.dims() - 1);
  shape->rows = x.NumElements() / shape->width;
  OpInputList mask;
  TF_RETURN_IF_ERROR(context->input_list("mask", &mask));
  if (mask.size() == 0) return OkStatus();
  if (mask.size() != 1 || mask[0].NumElements() != shape->rows)
    return InvalidArgument("batch norm: the mask is ", mask[0].shape().DebugString(), ", but the input has ",
                           shape->rows, " rows");
  shape->mask = mask[0].flat<uint8_t>().data();
  return OkStatus();
}

// The vectors of a call; scale and shift are null if they are not given.
struct Columns {
  const float *mean, *variance, *scale = nullptr, *shift = nullptr;

  Status read(OpKernelContext* context, int64_t width) {
    const TensorShape expected({width});
    for (int i : {1, 2})
      if (context->input(i).shape() != expected)
        return InvalidArgument("batch norm: mean and variance have to be [", width, "], but one is ",
                               context->input(i).shape().DebugString());
    mean = floats(context->input(1));
    variance = floats(context->input(2));
    TF_RETURN_IF_ERROR(optional(context, "scale", expected, &scale));
    return optional(context, "shift", expected, &shift);
  }

 private:
  static Status optional(OpKernelContext* context, const char* name, const TensorShape& expected, const float** data) {
    OpInputList list;
    TF_RETURN_IF_ERROR(context->input_list(name, &list));
    if (list.size() == 0) return OkStatus();
    if (list.size() != 1 || list[0].shape() != expected)
      return InvalidArgument("batch norm: ", name, " has to be ", expected.DebugString(), ", but is ",
                             list[0].shape().DebugString());
    *data = floats(list[0]);
    return OkStatus();
  }
};

struct Cpu {
  static int64_t scratch_size(const RtfBatchNorm& shape) { return rtf_batch_norm_scratch_size(&shape); }

  static Status moments(OpKernelContext* context, const RtfBatchNorm& shape, const float* x, float* mean,
                        float* variance, float* scratch) {
    const RtfThreads threads = tf_threads(context);
    rtf_batch_moments_f32(&shape, x, mean, variance, scratch, &threads);
    return OkStatus();
  }

  static Status forward(OpKernelContext* context, const RtfBatchNorm& shape, const float* x, const Columns& columns,
                        float* y) {
    const RtfThreads threads = tf_threads(context);
    rtf_batch_norm_f32(&shape, x, columns.mean, columns.variance, columns.scale, columns.shift, y, &threads);
    return OkStatus();
  }

  static Status backward(OpKernelContext* context, const RtfBatchNorm& shape, const float* dy, const float* x,
                         const Columns& columns, float* dx, float* dscale, float* dshift, float* scratch) {
    const RtfThreads threads = tf_threads(context);
    rtf_batch_norm_grad_f32(&shape, dy, x, columns.mean, columns.variance, columns.scale, columns.shift, dx, dscale,
                            dshift, scratch, &threads);
    return OkStatus();
  }
};

#if RTF_CUDA
struct Gpu {
  static int64_t scratch_size(const RtfBatchNorm& shape) { return rtf_batch_norm_cuda_scratch_size(&shape); }

  static Status moments(OpKernelContext* context, const RtfBatchNorm& shape, const float* x, float* mean,
                        float* variance, float* scratch) {
    return gpu_status("batch norm",
                      rtf_batch_moments_cuda_f32(&shape, x, mean, variance, scratch, gpu_stream(context)));
  }

  static Status forward(OpKernelContext* context, const RtfBatchNorm& shape, const float* x, const Columns& columns,
                        float* y) {
    return gpu_status("batch norm", rtf_batch_norm_cuda_f32(&shape, x, columns.mean, columns.variance, columns.scale,
                                                            columns.shift, y, gpu_stream(context)));
  }

  static Status backward(OpKernelContext* context, const RtfBatchNorm& shape, const float* dy, const float* x,
                         const Columns& columns, float* dx, float* dscale, float* dshift, float* scratch) {
    return gpu_status("batch norm",
                      rtf_batch_norm_grad_cuda_f32(&shape, dy, x, columns.mean, columns.variance, columns.scale,
                                                   columns.shift, dx, dscale, dshift, scratch, gpu_stream(context)));
  }
};
#endif

template <class Device>
class BatchMomentsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    RtfBatchNorm shape{};
    OP_REQUIRES_OK(context, sizes_of(context, &shape));
    Tensor *mean, *variance, scratch;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({shape.width}), &mean));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({shape.width}), &variance));
    OP_REQUIRES_OK(context, allocate_scratch(context, Device::scratch_size(shape), &scratch));
    OP_REQUIRES_OK(context, Device::moments(context, shape, floats(context->input(0)), floats(mean), floats(variance),
                                            floats(&scratch)));
  }
};

class BatchNormBase : public OpKernel {
 public:
  explicit BatchNormBase(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "epsilon", &shape_.epsilon);
    OP_REQUIRES_OK(construction, get_function(construction, "function", &shape_.function));
  }

 protected:
  RtfBatchNorm shape_{};
};

template <class Device>
class BatchNormOp : public BatchNormBase {
 public:
  using BatchNormBase::BatchNormBase;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    RtfBatchNorm shape = this->shape_;
    Columns columns;
    OP_REQUIRES_OK(context, sizes_of(context, &shape));
    OP_REQUIRES_OK(context, columns.read(context, shape.width));
    Tensor* y;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, x.shape(), &y));
    OP_REQUIRES_OK(context, Device::forward(context, shape, floats(x), columns, floats(y)));
  }
};

template <class Device>
class BatchNormGradOp : public BatchNormBase {
 public:
  using BatchNormBase::BatchNormBase;

  void Compute(OpKernelContext* context) override {
    const int last = context->num_inputs() - 1;
    const Tensor &x = context->input(0), &dy = context->input(last);
    RtfBatchNorm shape = this->shape_;
    Columns columns;
    OP_REQUIRES_OK(context, sizes_of(context, &shape));
    OP_REQUIRES_OK(context, columns.read(context, shape.width));
    OP_REQUIRES(context, dy.shape() == x.shape(),
                InvalidArgument("batch norm: the gradient is ", dy.shape().DebugString(), ", but the input is ",
                                x.shape().DebugString()));
    Tensor *dx, *dscale, *dshift, scratch;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({last}, 0, x.shape(), &dx));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({shape.width}), &dscale));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({shape.width}), &dshift));
    OP_REQUIRES_OK(context, allocate_scratch(context, Device::scratch_size(shape), &scratch));
    OP_REQUIRES_OK(context, Device::backward(context, shape, floats(dy), floats(x), columns, floats(dx), floats(dscale),
                                             floats(dshift), floats(&scratch)));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfBatchMoments").Device(DEVICE_CPU), BatchMomentsOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfBatchNorm").Device(DEVICE_CPU), BatchNormOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfBatchNormGrad").Device(DEVICE_CPU), BatchNormGradOp<Cpu>);
#if RTF_CUDA
REGISTER_KERNEL_BUILDER(Name("RtfBatchMoments").Device(DEVICE_GPU), BatchMomentsOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfBatchNorm").Device(DEVICE_GPU), BatchNormOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfBatchNormGrad").Device(DEVICE_GPU), BatchNormGradOp<Gpu>);
#endif

}  // namespace
}  // namespace rtf
