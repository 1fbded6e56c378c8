// The delta rule as TensorFlow ops. The kernels are in delta_scan_cpu.cc.
#include "../common/tf_scan_shapes.h"
#include "delta_scan.h"

namespace rtf {
namespace {

REGISTER_OP("RtfDeltaScan")
    .Attr("reverse: bool")
    .Input("q: float")        // [T, B, H, K]
    .Input("k: float")        // [T, B, H, K]
    .Input("v: float")        // [T, B, H, V]
    .Input("a: float")        // [T, B, H, K]
    .Input("b: float")        // [T, B, H, K]
    .Input("g: float")        // [T, B, H, K or 1]: log decays
    .Input("first: float")    // [B, H, K, V]
    .Input("lengths: int32")  // [B]
    .Output("o: float")       // [T, B, H, V]
    .Output("u: float")       // [T, B, H, V]
    .Output("last: float")    // [B, H, K, V]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(2));
      context->set_output(1, context->input(2));
      context->set_output(2, context->input(6));
      return OkStatus();
    });

REGISTER_OP("RtfDeltaScanGrad")
    .Attr("reverse: bool")
    .Input("q: float")
    .Input("k: float")
    .Input("v: float")
    .Input("a: float")
    .Input("b: float")
    .Input("g: float")
    .Input("first: float")
    .Input("lengths: int32")
    .Input("u: float")
    .Input("last: float")
    .Input("d_o: float")
    .Input("d_last: float")
    .Output("d_q: float")
    .Output("d_k: float")
    .Output("d_v: float")
    .Output("d_a: float")
    .Output("d_b: float")
    .Output("d_g: float")
    .Output("d_first: float")
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < 7; ++i) context->set_output(i, context->input(i));
      return OkStatus();
    });

class DeltaScanBase : public OpKernel {
 public:
  explicit DeltaScanBase(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "reverse", &reverse_);
  }

 protected:
  Status check(OpKernelContext* context, RtfDeltaScanShape* shape, RtfDeltaScanInputs* inputs) const {
    const ScanInput keys = ScanInput::kKeys;
    TF_RETURN_IF_ERROR(check_scan("delta scan", context,
                                  {{"q", keys},
                                   {"k", keys},
                                   {"v", ScanInput::kValues},
                                   {"a", keys},
                                   {"b", keys},
                                   {"g", ScanInput::kDecays},
                                   {"the first state", ScanInput::kState}},
                                  reverse_, shape));
    *inputs = {in(context, 0), in(context, 1), in(context, 2), in(context, 3),
               in(context, 4), in(context, 5), in(context, 6)};
    return OkStatus();
  }

 private:
  bool reverse_;
};

class DeltaScanOp : public DeltaScanBase {
 public:
  using DeltaScanBase::DeltaScanBase;

  void Compute(OpKernelContext* context) override {
    RtfDeltaScanShape shape;
    RtfDeltaScanInputs inputs;
    OP_REQUIRES_OK(context, check(context, &shape, &inputs));
    Tensor *o, *u, *last;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(2).shape(), &o));
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(2).shape(), &u));
    OP_REQUIRES_OK(context, context->allocate_output(2, context->input(6).shape(), &last));
    const RtfThreads threads = tf_threads(context);
    rtf_delta_scan_forward_f32(&shape, &inputs, floats(o), floats(u), floats(last), &threads);
  }
};

class DeltaScanGradOp : public DeltaScanBase {
 public:
  using DeltaScanBase::DeltaScanBase;

  void Compute(OpKernelContext* context) override {
    RtfDeltaScanShape shape;
    RtfDeltaScanInputs inputs;
    OP_REQUIRES_OK(context, check(context, &shape, &inputs));
    OP_REQUIRES_OK(context, check_gradients("delta scan", context, {{8, 2}, {9, 6}, {10, 2}, {11, 6}}));
    float* out[7];
    OP_REQUIRES_OK(context, allocate_like_inputs(context, out));
    const RtfDeltaScanGradients gradients = {out[0], out[1], out[2], out[3], out[4], out[5], out[6]};
    const RtfThreads threads = tf_threads(context);
    rtf_delta_scan_backward_f32(&shape, &inputs, in(context, 8), in(context, 9), in(context, 10), in(context, 11),
                                &gradients, &threads);
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfDeltaScan").Device(DEVICE_CPU), DeltaScanOp);
REGISTER_KERNEL_BUILDER(Name("RtfDeltaScanGrad").Device(DEVICE_CPU), DeltaScanGradOp);

}  // namespace
}  // namespace rtf
