// The best labels of each hypothesis as a TensorFlow op. The kernels are in best_labels_cpu.cc and best_labels_cuda.cu.
#include "../common/tf_op.h"
#include "../common/tf_quick_threads.h"
#include "best_labels.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#include "best_labels_cuda.h"
#endif

namespace rtf {
namespace {

REGISTER_OP("RtfBestLabels")
    .Attr("count: int >= 1")
    .Input("x: float")          // [rows, labels]
    .Output("values: float")    // [rows, count]
    .Output("indices: int32")   // [rows, count]
    .Output("log_sums: float")  // [rows]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &x));
      int64_t count;
      TF_RETURN_IF_ERROR(context->GetAttr("count", &count));
      const ShapeHandle best = context->MakeShape({context->Dim(x, 0), context->MakeDim(count)});
      context->set_output(0, best);
      context->set_output(1, best);
      context->set_output(2, context->MakeShape({context->Dim(x, 0)}));
      return OkStatus();
    });

class BestLabelsOp : public OpKernel {
 public:
  explicit BestLabelsOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "count", &count_);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    OP_REQUIRES(context, x.dims() == 2 && x.dim_size(1) >= count_,
                InvalidArgument("best labels: for ", count_, " labels the input has to be [rows, at least so many], ",
                                "but is ", x.shape().DebugString()));
    const int64_t rows = x.dim_size(0);
    Tensor *values, *indices, *log_sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({rows, count_}), &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({rows, count_}), &indices));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({rows}), &log_sums));
    OP_REQUIRES_OK(context, run(context, rows, x.dim_size(1), floats(x), floats(values),
                                indices->flat<int32_t>().data(), floats(log_sums)));
  }

 protected:
  virtual Status run(OpKernelContext* context, int64_t rows, int64_t labels, const float* x, float* values,
                     int32_t* indices, float* log_sums) const {
    const RtfThreads threads = tf_quick_threads(context);
    rtf_best_labels_f32(rows, labels, count_, x, values, indices, log_sums, &threads);
    return OkStatus();
  }

  int64_t count_;
};

REGISTER_KERNEL_BUILDER(Name("RtfBestLabels").Device(DEVICE_CPU), BestLabelsOp);

#if RTF_CUDA
class BestLabelsGpuOp : public BestLabelsOp {
 public:
  using BestLabelsOp::BestLabelsOp;

 protected:
  Status run(OpKernelContext* context, int64_t rows, int64_t labels, const float* x, float* values, int32_t* indices,
             float* log_sums) const override {
    return gpu_status("best labels", rtf_best_labels_cuda_f32(rows, labels, count_, x, values, indices, log_sums,
                                                              gpu_stream(context)));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfBestLabels").Device(DEVICE_GPU), BestLabelsGpuOp);
#endif

}  // namespace
}  // namespace rtf
