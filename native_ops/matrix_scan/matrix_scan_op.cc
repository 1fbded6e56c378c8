// Matrix-valued recurrences as TensorFlow ops. The kernels are in matrix_scan_cpu.cc.
#include "../common/tf_scan_shapes.h"
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
      return OkStatus();
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
      return OkStatus();
    });

class MatrixScanBase : public OpKernel {
 public:
  explicit MatrixScanBase(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "reverse", &reverse_, "exclusive", &exclusive_);
  }

 protected:
  Status check(OpKernelContext* context, RtfMatrixScanShape* shape) const {
    shape->exclusive = exclusive_;
    return check_scan("matrix scan", context,
                      {{"q", ScanInput::kKeys},
                       {"k", ScanInput::kKeys},
                       {"v", ScanInput::kValues},
                       {"g", ScanInput::kDecays},
                       {"the first state", ScanInput::kState}},
                      reverse_, shape);
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
                                floats(o), floats(last), &threads);
  }
};

class MatrixScanGradOp : public MatrixScanBase {
 public:
  using MatrixScanBase::MatrixScanBase;

  void Compute(OpKernelContext* context) override {
    RtfMatrixScanShape shape;
    OP_REQUIRES_OK(context, check(context, &shape));
    OP_REQUIRES_OK(context, check_gradients("matrix scan", context, {{6, 4}, {7, 2}, {8, 4}}));
    float* out[5];
    OP_REQUIRES_OK(context, allocate_like_inputs(context, out));
    const RtfThreads threads = tf_threads(context);
    rtf_matrix_scan_backward_f32(&shape, in(context, 0), in(context, 1), in(context, 2), in(context, 3), in(context, 4),
                                 in(context, 6), in(context, 7), in(context, 8), out[0], out[1], out[2], out[3], out[4],
                                 &threads);
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfMatrixScan").Device(DEVICE_CPU), MatrixScanOp);
REGISTER_KERNEL_BUILDER(Name("RtfMatrixScanGrad").Device(DEVICE_CPU), MatrixScanGradOp);

}  // namespace
}  // namespace rtf
