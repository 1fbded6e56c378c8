// The product with a matrix of bfloat16 as a TensorFlow op. The kernel is in bfloat16_cpu.cc.
#include "../common/tf_quick_threads.h"
#include "bfloat16.h"

namespace rtf {
namespace {

REGISTER_OP("RtfBfloat16Product")
    .Input("x: float")     // [..., depth]
    .Input("w: bfloat16")  // [panels, groups, 16, 2], see bfloat16.h
    .Attr("columns: int")
    .Output("y: float")  // [..., columns]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x, w, y;
      int64_t columns;
      TF_RETURN_IF_ERROR(context->GetAttr("columns", &columns));
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &x));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 4, &w));
      if (!context->RankKnown(x)) {
        context->set_output(0, context->UnknownShape());
        return OkStatus();
      }
      TF_RETURN_IF_ERROR(context->ReplaceDim(x, -1, context->MakeDim(columns), &y));
      context->set_output(0, y);
      return OkStatus();
    });

class Bfloat16ProductOp : public OpKernel {
 public:
  explicit Bfloat16ProductOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("columns", &columns_));
    OP_REQUIRES(context, columns_ > 0, InvalidArgument("bfloat16 product: ", columns_, " columns"));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &w = context->input(1);
    OP_REQUIRES(context, x.dims() >= 1,
                InvalidArgument("bfloat16 product: x has no axis to multiply: ", x.shape().DebugString()));
    const int64_t depth = x.dim_size(x.dims() - 1);
    OP_REQUIRES(context, w.NumElements() == rtf_bfloat16_matrix_size(depth, columns_),
                InvalidArgument("bfloat16 product: rows of ", x.shape().DebugString(), " do not fit a matrix of ",
                                columns_, " columns that has ", w.NumElements(), " numbers"));
    TensorShape shape = x.shape();
    shape.set_dim(x.dims() - 1, columns_);
    Tensor *y, scratch;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &y));
    if (y->NumElements() == 0) return;
    const int64_t rows = y->NumElements() / columns_;
    OP_REQUIRES_OK(context,
                   allocate_scratch(context, rtf_bfloat16_scratch_size(rows, depth) / sizeof(float), &scratch));
    const RtfThreads threads = tf_quick_threads(context);
    rtf_bfloat16_product_f32(rows, depth, columns_, floats(x), w.flat<uint16_t>().data(), floats(y), floats(&scratch),
                             &threads);
  }

 private:
  int64_t columns_;
};

REGISTER_KERNEL_BUILDER(Name("RtfBfloat16Product").Device(DEVICE_CPU), Bfloat16ProductOp);

}  // namespace
}  // namespace rtf
