// Cross entropy of a softmax over many labels as a TensorFlow op. The kernels are in softmax_cpu.cc and
// softmax_cuda.cu.
#include "../common/tf_op.h"
#include "softmax.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#include "softmax_cuda.h"
#endif

namespace rtf {
namespace {

REGISTER_OP("RtfSoftmaxCe")
    .Attr("with_gradient: bool")
    .Attr("on: float")
    .Attr("off: float")
    .Attr("entropy: float")
    .Attr("focal: float")
    .Input("z: float")          // [frames, labels]
    .Input("bias: float")       // [labels]
    .Input("target: int32")     // [frames]
    .Output("values: float")    // [frames]
    .Output("errors: float")    // [frames]
    .Output("gradient: float")  // [frames, labels]; [0, labels] without a gradient
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle z, bias, target;
      bool with_gradient;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &z));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &bias));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 1, &target));
      TF_RETURN_IF_ERROR(context->GetAttr("with_gradient", &with_gradient));
      DimensionHandle frames, labels;
      TF_RETURN_IF_ERROR(context->Merge(context->Dim(z, 0), context->Dim(target, 0), &frames));
      TF_RETURN_IF_ERROR(context->Merge(context->Dim(z, 1), context->Dim(bias, 0), &labels));
      context->set_output(0, context->Vector(frames));
      context->set_output(1, context->Vector(frames));
      context->set_output(2, context->Matrix(with_gradient ? frames : context->MakeDim(0), labels));
      return OkStatus();
    });

struct Arrays {
  const float *z, *bias;
  const int32_t* target;
  float *values, *errors, *gradient;
};

// Runs the CPU kernel on TensorFlow's threads.
struct Cpu {
  static Status check(const RtfSoftmaxCe& shape, const int32_t* target) {
    for (int64_t t = 0; t < shape.frames; ++t)
      if (target[t] < 0 || target[t] >= shape.labels)
        return InvalidArgument("softmax: frame ", t, " has the label ", target[t], ", but there are ", shape.labels,
                               " labels");
    return OkStatus();
  }

  static Status run(OpKernelContext* context, const RtfSoftmaxCe& shape, const Arrays& x) {
    const RtfThreads threads = tf_threads(context);
    rtf_softmax_ce_f32(&shape, x.z, x.bias, x.target, x.values, x.errors, x.gradient, &threads);
    return OkStatus();
  }
};

#if RTF_CUDA
// Runs the GPU kernel on TensorFlow's stream. Labels are in the memory of the GPU and can't be looked at.
struct Gpu {
  static Status check(const RtfSoftmaxCe&, const int32_t*) { return OkStatus(); }

  static Status run(OpKernelContext* context, const RtfSoftmaxCe& shape, const Arrays& x) {
    return gpu_status("softmax", rtf_softmax_ce_cuda_f32(&shape, x.z, x.bias, x.target, x.values, x.errors, x.gradient,
                                                         gpu_stream(context)));
  }
};
#endif

template <class Device>
class SoftmaxCeOp : public OpKernel {
 public:
  explicit SoftmaxCeOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "with_gradient", &with_gradient_, "on", &shape_.on, "off", &shape_.off, "entropy",
               &shape_.entropy, "focal", &shape_.focal);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &z = context->input(0), &bias = context->input(1), &target = context->input(2);
    OP_REQUIRES(context, z.dims() == 2 && bias.dims() == 1 && target.dims() == 1,
                InvalidArgument("softmax: the inputs have to be [frames, labels], [labels] and [frames], but are ",
                                z.shape().DebugString(), ", ", bias.shape().DebugString(), " and ",
                                target.shape().DebugString()));
    RtfSoftmaxCe shape = shape_;
    shape.frames = z.dim_size(0);
    shape.labels = z.dim_size(1);
    OP_REQUIRES(context, bias.dim_size(0) == shape.labels && target.dim_size(0) == shape.frames,
                InvalidArgument("softmax: the bias ", bias.shape().DebugString(), " or the target ",
                                target.shape().DebugString(), " does not fit ", z.shape().DebugString()));
    const int32_t* labels = target.flat<int32_t>().data();
    OP_REQUIRES_OK(context, Device::check(shape, labels));
    const float *logits = floats(z), *biases = floats(bias);
    Tensor *values, *errors, *gradient;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({shape.frames}), &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({shape.frames}), &errors));
    if (with_gradient_)
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 2, z.shape(), &gradient));
    else
      OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({0, shape.labels}), &gradient));
    if (shape.frames == 0) return;
    const Arrays arrays{logits,         biases,         labels,
                        floats(values), floats(errors), with_gradient_ ? floats(gradient) : nullptr};
    OP_REQUIRES_OK(context, Device::run(context, shape, arrays));
  }

 private:
  RtfSoftmaxCe shape_{};
  bool with_gradient_;
};

REGISTER_KERNEL_BUILDER(Name("RtfSoftmaxCe").Device(DEVICE_CPU), SoftmaxCeOp<Cpu>);
#if RTF_CUDA
REGISTER_KERNEL_BUILDER(Name("RtfSoftmaxCe").Device(DEVICE_GPU), SoftmaxCeOp<Gpu>);
#endif

}  // namespace
}  // namespace rtf
