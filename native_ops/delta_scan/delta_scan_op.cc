// The delta rule as TensorFlow ops. The kernels are in delta_scan_cpu.cc and delta_scan_cuda.cu.
#include "../common/tf_scan_shapes.h"
#include "delta_scan.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#endif

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

// The results of a pass, and what the backward pass reads besides the inputs.
struct Forward {
  float *o, *u, *last;
};

struct Backward {
  const float *u, *last, *d_o, *d_last;
  RtfDeltaScanGradients gradients;
};

// Runs the CPU kernels on TensorFlow's threads.
struct Cpu {
  static constexpr bool kHost = true;

  static Status run(OpKernelContext* context, const RtfDeltaScanShape& shape, const RtfDeltaScanInputs& inputs,
                    const Forward& x) {
    const RtfThreads threads = tf_threads(context);
    rtf_delta_scan_forward_f32(&shape, &inputs, x.o, x.u, x.last, &threads);
    return OkStatus();
  }

  static Status run(OpKernelContext* context, const RtfDeltaScanShape& shape, const RtfDeltaScanInputs& inputs,
                    const Backward& x) {
    const RtfThreads threads = tf_threads(context);
    rtf_delta_scan_backward_f32(&shape, &inputs, x.u, x.last, x.d_o, x.d_last, &x.gradients, &threads);
    return OkStatus();
  }
};

#if RTF_CUDA
// Runs the GPU kernels on TensorFlow's stream.
struct Gpu {
  static constexpr bool kHost = false;

  static Status run(OpKernelContext* context, const RtfDeltaScanShape& shape, const RtfDeltaScanInputs& inputs,
                    const Forward& x) {
    return gpu_status("delta scan",
                      rtf_delta_scan_forward_cuda_f32(&shape, &inputs, x.o, x.u, x.last, gpu_stream(context)));
  }

  static Status run(OpKernelContext* context, const RtfDeltaScanShape& shape, const RtfDeltaScanInputs& inputs,
                    const Backward& x) {
    Tensor scratch;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_delta_scan_cuda_scratch_size(&shape), &scratch));
    return gpu_status("delta scan",
                      rtf_delta_scan_backward_cuda_f32(&shape, &inputs, x.u, x.last, x.d_o, x.d_last, &x.gradients,
                                                       floats(&scratch), gpu_stream(context)));
  }
};
#endif

class DeltaScanBase : public OpKernel {
 public:
  explicit DeltaScanBase(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "reverse", &reverse_);
  }

 protected:
  Status check(OpKernelContext* context, bool host, RtfDeltaScanShape* shape, RtfDeltaScanInputs* inputs) const {
    const ScanInput keys = ScanInput::kKeys;
    TF_RETURN_IF_ERROR(check_scan("delta scan", context,
                                  {{"q", keys},
                                   {"k", keys},
                                   {"v", ScanInput::kValues},
                                   {"a", keys},
                                   {"b", keys},
                                   {"g", ScanInput::kDecays},
                                   {"the first state", ScanInput::kState}},
                                  reverse_, host, shape));
    *inputs = {in(context, 0), in(context, 1), in(context, 2), in(context, 3),
               in(context, 4), in(context, 5), in(context, 6)};
    return OkStatus();
  }

 private:
  bool reverse_;
};

template <class Device>
class DeltaScanOp : public DeltaScanBase {
 public:
  using DeltaScanBase::DeltaScanBase;

  void Compute(OpKernelContext* context) override {
    RtfDeltaScanShape shape;
    RtfDeltaScanInputs inputs;
    OP_REQUIRES_OK(context, check(context, Device::kHost, &shape, &inputs));
    Tensor *o, *u, *last;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(2).shape(), &o));
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(2).shape(), &u));
    OP_REQUIRES_OK(context, context->allocate_output(2, context->input(6).shape(), &last));
    OP_REQUIRES_OK(context, Device::run(context, shape, inputs, Forward{floats(o), floats(u), floats(last)}));
  }
};

template <class Device>
class DeltaScanGradOp : public DeltaScanBase {
 public:
  using DeltaScanBase::DeltaScanBase;

  void Compute(OpKernelContext* context) override {
    RtfDeltaScanShape shape;
    RtfDeltaScanInputs inputs;
    OP_REQUIRES_OK(context, check(context, Device::kHost, &shape, &inputs));
    OP_REQUIRES_OK(context, check_gradients("delta scan", context, {{8, 2}, {9, 6}, {10, 2}, {11, 6}}));
    float* out[7];
    OP_REQUIRES_OK(context, allocate_like_inputs(context, out));
    const Backward pass = {in(context, 8),
                           in(context, 9),
                           in(context, 10),
                           in(context, 11),
                           {out[0], out[1], out[2], out[3], out[4], out[5], out[6]}};
    OP_REQUIRES_OK(context, Device::run(context, shape, inputs, pass));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfDeltaScan").Device(DEVICE_CPU), DeltaScanOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfDeltaScanGrad").Device(DEVICE_CPU), DeltaScanGradOp<Cpu>);
#if RTF_CUDA
REGISTER_KERNEL_BUILDER(Name("RtfDeltaScan").Device(DEVICE_GPU), DeltaScanOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfDeltaScanGrad").Device(DEVICE_GPU), DeltaScanGradOp<Gpu>);
#endif

}  // namespace
}  // namespace rtf
