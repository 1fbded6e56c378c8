// The product of two matrices as a TensorFlow op. The kernel is in product_cpu.cc.
#include "../common/tf_op.h"
#include "product.h"

namespace rtf {
namespace {

REGISTER_OP("RtfProduct")
    .Attr("transpose_a: bool")
    .Attr("transpose_b: bool")
    .Attr("has_bias: bool")
    .Attr("rounded: bool = false")
    .Input("a: float")     // [rows, depth]
    .Input("b: float")     // [depth, columns]
    .Input("bias: float")  // [columns], or [0] without a bias
    .Output("y: float")    // [rows, columns]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle a, b, bias;
      bool transpose_a, transpose_b, has_bias;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &a));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 2, &b));
      TF_RETURN_IF_ERROR(context->GetAttr("transpose_a", &transpose_a));
      TF_RETURN_IF_ERROR(context->GetAttr("transpose_b", &transpose_b));
      TF_RETURN_IF_ERROR(context->GetAttr("has_bias", &has_bias));
      DimensionHandle depth, columns = context->Dim(b, transpose_b ? 0 : 1);
      TF_RETURN_IF_ERROR(
          context->Merge(context->Dim(a, transpose_a ? 0 : 1), context->Dim(b, transpose_b ? 1 : 0), &depth));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 1, &bias));
      if (has_bias) TF_RETURN_IF_ERROR(context->Merge(columns, context->Dim(bias, 0), &columns));
      context->set_output(0, context->Matrix(context->Dim(a, transpose_a ? 1 : 0), columns));
      return OkStatus();
    });

class ProductOp : public OpKernel {
 public:
  explicit ProductOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "transpose_a", &transpose_a_, "transpose_b", &transpose_b_, "has_bias", &has_bias_,
               "rounded", &rounded_);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &a = context->input(0), &b = context->input(1), &bias = context->input(2);
    OP_REQUIRES(context, a.dims() == 2 && b.dims() == 2,
                InvalidArgument("product: both factors have to be matrices, but are ", a.shape().DebugString(), " and ",
                                b.shape().DebugString()));
    const RtfProduct shape{a.dim_size(transpose_a_ ? 1 : 0),
                           a.dim_size(transpose_a_ ? 0 : 1),
                           b.dim_size(transpose_b_ ? 0 : 1),
                           transpose_a_,
                           transpose_b_,
                           rounded_};
    OP_REQUIRES(
        context, b.dim_size(transpose_b_ ? 1 : 0) == shape.depth,
        InvalidArgument("product: the factors do not fit: ", a.shape().DebugString(), transpose_a_ ? " transposed" : "",
                        " and ", b.shape().DebugString(), transpose_b_ ? " transposed" : ""));
    OP_REQUIRES(
        context, !has_bias_ || bias.shape() == TensorShape({shape.columns}),
        InvalidArgument("product: the bias has to be [", shape.columns, "], but is ", bias.shape().DebugString()));
    const RtfThreads threads = tf_threads(context);
    Tensor *y, scratch;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({shape.rows, shape.columns}), &y));
    if (y->NumElements() == 0) return;
    OP_REQUIRES_OK(context, allocate_scratch(context, rtf_product_scratch_size(&shape, threads.n_threads), &scratch));
    rtf_product_f32(&shape, floats(a), floats(b), has_bias_ ? floats(bias) : nullptr, floats(y), floats(&scratch),
                    &threads);
  }

 private:
  bool transpose_a_, transpose_b_, has_bias_, rounded_;
};

REGISTER_KERNEL_BUILDER(Name("RtfProduct").Device(DEVICE_CPU), ProductOp);

}  // namespace
}  // namespace rtf
