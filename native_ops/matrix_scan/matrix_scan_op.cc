// Matrix-valued recurrences as TensorFlow ops. The kernels are in matrix_scan_cpu.cc.
#include <utility>

#include "../common/tf_sequences.h"
#include "../common/tf_threads.h"
#include "matrix_scan.h"

namespace rtf {
namespace {

REGISTER_OP("RtfMatrixScan")
    .Attr("reverse: bool")
    .Attr("exclusive: bool")
    .Input("q: float")        // [T, B, H, K]
    .Input("k: float")        // [T, B, H, K]
    .Input("v: float")        // [T, B, H, V]
    .Input("g: float")        // [T, B, H, K or 1]: log decays
    .Input("first: float")    // [B, H, K, V]
    .Input("lengths: int32")  // [B]
    .Output("o: float")       // [T, B, H, V]
    .Output("last: float")    // [B, H, K, V]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(2));
      context->set_output(1, context->input(4));
      return tensorflow::OkStatus();
    });

REGISTER_OP("RtfMatrixScanGrad")
    .Attr("reverse: bool")
    .Attr("exclusive: bool")
    .Input("q: float")
    .Input("k: float")
    .Input("v: float")
    .Input("g: float")
    .Input("first: float")
    .Input("lengths: int32")
    .Input("last: float")
    .Input("d_o: float")
    .Input("d_last: float")
    .Output("d_q: float")
    .Output("d_k: float")
    .Output("d_v: float")
    .Output("d_g: float")
    .Output("d_first: float")
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < 5; ++i) context->set_output(i, context->input(i));
      return tensorflow::OkStatus();
    });

const float* in(OpKernelContext* context, int index) { return context->input(index).flat<float>().data(); }

class MatrixScanBase : public OpKernel {
 public:
  explicit MatrixScanBase(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("reverse", &reverse_));
    OP_REQUIRES_OK(construction, construction->GetAttr("exclusive", &exclusive_));
  }

 protected:
  Status check(OpKernelContext* context, RtfMatrixScanShape* shape) const {
    const TensorShape &q = context->input(0).shape(), &v = context->input(2).shape();
    if (q.dims() != 4)
      return InvalidArgument("matrix scan: q has to be [time, batch, heads, keys], not ", q.DebugString());
    const int64_t frames = q.dim_size(0), batch = q.dim_size(1), heads = q.dim_size(2), keys = q.dim_size(3);
    const int64_t values = v.dims() == 4 ? v.dim_size(3) : 0;
    const TensorShape& g = context->input(3).shape();
    const std::pair<const char*, TensorShape> expected[] = {
        {"q", q},
        {"k", q},
        {"v", TensorShape({frames, batch, heads, values})},
        {"g", g.dims() == 4 && g.dim_size(3) == 1 ? TensorShape({frames, batch, heads, 1}) : q},
        {"the first state", TensorShape({batch, heads, keys, values})}};
    for (int i = 0; i < 5; ++i)
      if (context->input(i).shape() != expected[i].second)
        return InvalidArgument("matrix scan: ", expected[i].first, " has to be ", expected[i].second.DebugString(),
                               ", but is ", context->input(i).shape().DebugString());
    if (heads < 1 || keys < 1 || values < 1) return InvalidArgument("matrix scan: there are no heads, keys or values");
    shape->keys = keys;
    shape->values = values;
    shape->decays = g.dim_size(3);
    shape->exclusive = exclusive_;
    return read_sequences("matrix scan", frames, batch, heads, context->input(5), reverse_, &shape->sequences);
  }

 private:
  bool reverse_, exclusive_;
};

class MatrixScanOp : public MatrixScanBase {
 public:
  using MatrixScanBase::MatrixScanBase;

  void Compute(OpKernelContext* context) override {
    RtfMatrixScanShape shape;
    OP_REQUIRES_OK(context, check(context, &shape));
    Tensor *o, *last;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(2).shape(), &o));
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(4).shape(), &last));
    const RtfThreads threads = tf_threads(context);
    rtf_matrix_scan_forward_f32(&shape, in(context, 0), in(context, 1), in(context, 2), in(context, 3), in(context, 4),
                                o->flat<float>().data(), last->flat<float>().data(), &threads);
  }
};

class MatrixScanGradOp : public MatrixScanBase {
 public:
  using MatrixScanBase::MatrixScanBase;

  void Compute(OpKernelContext* context) override {
    RtfMatrixScanShape shape;
    OP_REQUIRES_OK(context, check(context, &shape));
    const TensorShape &state = context->input(4).shape(), &v = context->input(2).shape();
    OP_REQUIRES(
        context,
        context->input(6).shape() == state && context->input(7).shape() == v && context->input(8).shape() == state,
        InvalidArgument("matrix scan: the gradients do not have the shape of what they are gradients of"));
    float* out[5];
    for (int i = 0; i < 5; ++i) {
      Tensor* tensor;
      OP_REQUIRES_OK(context, context->allocate_output(i, context->input(i).shape(), &tensor));
      out[i] = tensor->flat<float>().data();
    }
    const RtfThreads threads = tf_threads(context);
    rtf_matrix_scan_backward_f32(&shape, in(context, 0), in(context, 1), in(context, 2), in(context, 3), in(context, 4),
                                 in(context, 6), in(context, 7), in(context, 8), out[0], out[1], out[2], out[3], out[4],
                                 &threads);
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfMatrixScan").Device(tensorflow::DEVICE_CPU), MatrixScanOp);
REGISTER_KERNEL_BUILDER(Name("RtfMatrixScanGrad").Device(tensorflow::DEVICE_CPU), MatrixScanGradOp);

}  // namespace
}  // namespace rtf
