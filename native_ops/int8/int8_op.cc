// The product with a matrix of int8 as a TensorFlow op. The kernel is in int8_cpu.cc.
#include "../common/tf_after_product.h"
#include "../common/tf_quick_threads.h"
#include "int8.h"

namespace rtf {
namespace {

REGISTER_OP("RtfInt8Product")
    .Attr("biases: int >= 0 = 0")
    .Attr("residuals: int >= 0 = 0")
    .Attr("relu: bool = false")
    .Input("x: float")                     // [..., depth]
    .Input("w: uint8")                     // [panels, groups, 16, 4], see int8.h
    .Input("scales: float")                // [columns]
    .Input("bias: biases * float")         // see tf_after_product.h
    .Input("residual: residuals * float")  // likewise
    .Output("y: float")                    // [..., columns]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x, w, scales, y;
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &x));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 4, &w));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 1, &scales));
      if (!context->RankKnown(x)) {
        context->set_output(0, context->UnknownShape());
        return OkStatus();
      }
      TF_RETURN_IF_ERROR(context->ReplaceDim(x, -1, context->Dim(scales, 0), &y));
      context->set_output(0, y);
      return OkStatus();
    });

class Int8ProductOp : public OpKernel {
 public:
  explicit Int8ProductOp(OpKernelConstruction* construction) : OpKernel(construction) { after_.read(construction); }

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &w = context->input(1), &scales = context->input(2);
    OP_REQUIRES(context, x.dims() >= 1,
                InvalidArgument("int8 product: x has no axis to multiply: ", x.shape().DebugString()));
    const int64_t depth = x.dim_size(x.dims() - 1), columns = scales.NumElements();
    OP_REQUIRES(context, w.NumElements() == rtf_int8_matrix_size(depth, columns),
                InvalidArgument("int8 product: rows of ", x.shape().DebugString(), " do not fit a matrix of ", columns,
                                " columns that has ", w.NumElements(), " bytes"));
    TensorShape shape = x.shape();
    shape.set_dim(x.dims() - 1, columns);
    RtfAfterProduct after;
    OP_REQUIRES_OK(context, after_.of(context, shape, &after));
    Tensor *y, scratch;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &y));
    if (y->NumElements() == 0) return;
    const int64_t rows = y->NumElements() / columns;
    OP_REQUIRES_OK(context, allocate_scratch(context, rtf_int8_scratch_size(rows, depth) / sizeof(float), &scratch));
    const RtfThreads threads = tf_quick_threads(context);
    rtf_int8_product_f32(rows, depth, columns, floats(x), w.flat<uint8_t>().data(), floats(scales), &after, floats(y),
                         floats(&scratch), &threads);
  }

 private:
  AfterProduct after_;
};

REGISTER_KERNEL_BUILDER(Name("RtfInt8Product").Device(DEVICE_CPU), Int8ProductOp);

}  // namespace
}  // namespace rtf
