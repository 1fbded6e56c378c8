// Matrix-valued recurrences as TensorFlow ops. The kernels are in matrix_scan_cpu.cc and matrix_scan_cuda.cu.
#include "../common/tf_scan_shapes.h"
#include "matrix_scan.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#endif

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

// Arrays of a pass, in the order of the C interface.
struct Forward {
  const float *q, *k, *v, *g, *first;
  float *o, *last;
};

struct Backward {
  const float *q, *k, *v, *g, *first, *last, *d_o, *d_last;
  float* d[5];
};

// Runs the CPU kernels on TensorFlow's threads.
struct Cpu {
  static constexpr bool kHost = true;

  static Status run(OpKernelContext* context, const RtfMatrixScanShape& shape, const Forward& x) {
    const RtfThreads threads = tf_threads(context);
    rtf_matrix_scan_forward_f32(&shape, x.q, x.k, x.v, x.g, x.first, x.o, x.last, &threads);
    return OkStatus();
  }

  static Status run(OpKernelContext* context, const RtfMatrixScanShape& shape, const Backward& x) {
    const RtfThreads threads = tf_threads(context);
    rtf_matrix_scan_backward_f32(&shape, x.q, x.k, x.v, x.g, x.first, x.last, x.d_o, x.d_last, x.d[0], x.d[1], x.d[2],
                                 x.d[3], x.d[4], &threads);
    return OkStatus();
  }
};

#if RTF_CUDA
// Runs the GPU kernels on TensorFlow's stream.
struct Gpu {
  static constexpr bool kHost = false;

  static Status run(OpKernelContext* context, const RtfMatrixScanShape& shape, const Forward& x) {
    return gpu_status("matrix scan", rtf_matrix_scan_forward_cuda_f32(&shape, x.q, x.k, x.v, x.g, x.first, x.o, x.last,
                                                                      gpu_stream(context)));
  }

  static Status run(OpKernelContext* context, const RtfMatrixScanShape& shape, const Backward& x) {
    return gpu_status("matrix scan",
                      rtf_matrix_scan_backward_cuda_f32(&shape, x.q, x.k, x.v, x.g, x.first, x.last, x.d_o, x.d_last,
                                                        x.d[0], x.d[1], x.d[2], x.d[3], x.d[4], gpu_stream(context)));
  }
};
#endif

class MatrixScanBase : public OpKernel {
 public:
  explicit MatrixScanBase(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "reverse", &reverse_, "exclusive", &exclusive_);
  }

 protected:
  Status check(OpKernelContext* context, bool host, RtfMatrixScanShape* shape) const {
    shape->exclusive = exclusive_;
    return check_scan("matrix scan", context,
                      {{"q", ScanInput::kKeys},
                       {"k", ScanInput::kKeys},
                       {"v", ScanInput::kValues},
                       {"g", ScanInput::kDecays},
                       {"the first state", ScanInput::kState}},
                      reverse_, host, shape);
  }

 private:
  bool reverse_, exclusive_;
};

template <class Device>
class MatrixScanOp : public MatrixScanBase {
 public:
  using MatrixScanBase::MatrixScanBase;

  void Compute(OpKernelContext* context) override {
    RtfMatrixScanShape shape;
    OP_REQUIRES_OK(context, check(context, Device::kHost, &shape));
    Tensor *o, *last;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(2).shape(), &o));
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(4).shape(), &last));
    const Forward pass = {in(context, 0), in(context, 1), in(context, 2), in(context, 3),
                          in(context, 4), floats(o),      floats(last)};
    OP_REQUIRES_OK(context, Device::run(context, shape, pass));
  }
};

template <class Device>
class MatrixScanGradOp : public MatrixScanBase {
 public:
  using MatrixScanBase::MatrixScanBase;

  void Compute(OpKernelContext* context) override {
    RtfMatrixScanShape shape;
    OP_REQUIRES_OK(context, check(context, Device::kHost, &shape));
    OP_REQUIRES_OK(context, check_gradients("matrix scan", context, {{6, 4}, {7, 2}, {8, 4}}));
    Backward pass = {in(context, 0), in(context, 1), in(context, 2),
                     in(context, 3), in(context, 4), in(context, 6),
                     in(context, 7), in(context, 8), {}};
    OP_REQUIRES_OK(context, allocate_like_inputs(context, pass.d));
    OP_REQUIRES_OK(context, Device::run(context, shape, pass));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfMatrixScan").Device(DEVICE_CPU), MatrixScanOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfMatrixScanGrad").Device(DEVICE_CPU), MatrixScanGradOp<Cpu>);
#if RTF_CUDA
REGISTER_KERNEL_BUILDER(Name("RtfMatrixScan").Device(DEVICE_GPU), MatrixScanOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfMatrixScanGrad").Device(DEVICE_GPU), MatrixScanGradOp<Gpu>);
#endif

}  // namespace
}  // namespace rtf
