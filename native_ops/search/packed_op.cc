// Products with a packed matrix as TensorFlow ops, and matrices in large pages. The kernels are in packed_cpu.cc.
#include <cstring>
#include <mutex>

#include "../common/tf_after_product.h"
#include "../common/tf_quick_threads.h"
#include "packed.h"
#include "tf_huge_pages.h"

namespace rtf {
namespace {

REGISTER_OP("RtfPackMatrix")
    .Attr("transposed: bool")
    .Input("w: float")        // [depth, columns], or transposed
    .Output("packed: float")  // [size]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle w;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &w));
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      return OkStatus();
    });

// A copy of a matrix of another type in large pages.
REGISTER_OP("RtfPlaceMatrix")
    .Attr("T: {uint8, bfloat16}")
    .Input("x: T")
    .Output("y: T")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      return OkStatus();
    });

REGISTER_OP("RtfPackedProduct")
    .Attr("columns: int >= 1")
    .Attr("biases: int >= 0 = 0")
    .Attr("residuals: int >= 0 = 0")
    .Attr("relu: bool = false")
    .Input("x: float")                     // [rows, depth]
    .Input("packed: float")                // what RtfPackMatrix returned for [depth, columns]
    .Input("bias: biases * float")         // see tf_after_product.h
    .Input("residual: residuals * float")  // likewise
    .Output("y: float")                    // [rows, columns]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x;
      int64_t columns;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &x));
      TF_RETURN_IF_ERROR(context->GetAttr("columns", &columns));
      context->set_output(0, context->Matrix(context->Dim(x, 0), columns));
      return OkStatus();
    });

// The last matrix and its packed form are kept: a search packs the parameters of a network in each batch, and they are
// the same until they are trained or loaded. Ops that change a variable copy a tensor to which something else refers,
// so the same buffer has the same numbers.
class PackMatrixOp : public OpKernel {
 public:
  explicit PackMatrixOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "transposed", &transposed_);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& w = context->input(0);
    OP_REQUIRES(context, w.dims() == 2, InvalidArgument("pack: not a matrix: ", w.shape().DebugString()));
    const int64_t depth = w.dim_size(transposed_ ? 1 : 0), columns = w.dim_size(transposed_ ? 0 : 1);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!w_.SharesBufferWith(w) || floats(w_) != floats(w) || w_.shape() != w.shape()) {
      packed_ = w_ = Tensor();  // before more is allocated
      Tensor packed;
      OP_REQUIRES_OK(context,
                     allocate_in_huge_pages(DT_FLOAT, TensorShape({rtf_packed_size(depth, columns)}), &packed));
      const RtfThreads threads = tf_threads(context);
      rtf_pack_matrix_f32(depth, columns, transposed_, floats(w), floats(&packed), &threads);
      w_ = w;
      packed_ = packed;
    }
    context->set_output(0, packed_);
  }

 private:
  bool transposed_;
  std::mutex mutex_;
  Tensor w_, packed_;
};

class PlaceMatrixOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor y;
    OP_REQUIRES_OK(context, allocate_in_huge_pages(x.dtype(), x.shape(), &y));
    std::memcpy(y.data(), x.data(), x.TotalBytes());
    context->set_output(0, y);
  }
};

class PackedProductOp : public OpKernel {
 public:
  explicit PackedProductOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "columns", &columns_);
    after_.read(construction);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &packed = context->input(1);
    OP_REQUIRES(context, x.dims() == 2 && packed.NumElements() == rtf_packed_size(x.dim_size(1), columns_),
                InvalidArgument("packed product: rows of ", x.shape().DebugString(), " do not fit a matrix of ",
                                columns_, " columns that is packed to ", packed.NumElements(), " numbers"));
    const TensorShape shape({x.dim_size(0), columns_});
    RtfAfterProduct after;
    OP_REQUIRES_OK(context, after_.of(context, shape, &after));
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &y));
    const RtfThreads threads = tf_quick_threads(context);
    rtf_packed_product_f32(x.dim_size(0), x.dim_size(1), columns_, floats(x), floats(packed), &after, floats(y),
                           &threads);
  }

 private:
  int64_t columns_;
  AfterProduct after_;
};

REGISTER_KERNEL_BUILDER(Name("RtfPackMatrix").Device(DEVICE_CPU), PackMatrixOp);
REGISTER_KERNEL_BUILDER(Name("RtfPlaceMatrix").Device(DEVICE_CPU), PlaceMatrixOp);
REGISTER_KERNEL_BUILDER(Name("RtfPackedProduct").Device(DEVICE_CPU), PackedProductOp);

}  // namespace
}  // namespace rtf
