// Linear recurrences as TensorFlow ops. The kernels are in scan_cpu.cc and scan_cuda.cu.
#include "../common/tf_sequences.h"
#include "scan.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#endif

namespace rtf {
namespace {

// Lists have one array, or two for complex numbers. a is [H] or [T, B, H].
REGISTER_OP("RtfScan")
    .Attr("reverse: bool")
    .Attr("parts: int >= 1")
    .Input("a: parts * float")
    .Input("b: parts * float")   // [T, B, H]
    .Input("h0: parts * float")  // [B, H]
    .Input("lengths: int32")     // [B]
    .Output("h: parts * float")
    .Output("h_last: parts * float")
    .SetShapeFn([](InferenceContext* context) {
      const int parts = (context->num_inputs() - 1) / 3;
      for (int p = 0; p < parts; ++p) {
        context->set_output(p, context->input(parts + p));
        context->set_output(parts + p, context->input(2 * parts + p));
      }
      return OkStatus();
    });

// da is [B, H] if a is [H].
REGISTER_OP("RtfScanGrad")
    .Attr("reverse: bool")
    .Attr("parts: int >= 1")
    .Input("a: parts * float")
    .Input("h0: parts * float")
    .Input("h: parts * float")
    .Input("dh: parts * float")
    .Input("dh_last: parts * float")
    .Input("lengths: int32")
    .Output("da: parts * float")
    .Output("db: parts * float")
    .Output("dh0: parts * float")
    .SetShapeFn([](InferenceContext* context) {
      const int parts = (context->num_inputs() - 1) / 5;
      for (int p = 0; p < parts; ++p) {
        const ShapeHandle a = context->input(p), h0 = context->input(parts + p);
        context->set_output(p, !context->RankKnown(a)  ? context->UnknownShape()
                               : context->Rank(a) == 1 ? h0
                                                       : context->input(2 * parts + p));
        context->set_output(parts + p, context->input(2 * parts + p));
        context->set_output(2 * parts + p, h0);
      }
      return OkStatus();
    });

// The two arrays of a list of one or two.
struct Pointers {
  const float* at[2] = {nullptr, nullptr};

  Pointers(OpKernelContext* context, int first, int parts) {
    for (int p = 0; p < parts; ++p) at[p] = floats(context->input(first + p));
  }
};

struct Results {
  float* at[2] = {nullptr, nullptr};

  Status allocate(OpKernelContext* context, int first, int parts, const TensorShape& shape) {
    for (int p = 0; p < parts; ++p) {
      Tensor* tensor;
      TF_RETURN_IF_ERROR(context->allocate_output(first + p, shape, &tensor));
      at[p] = floats(tensor);
    }
    return OkStatus();
  }
};

struct Cpu {
  static constexpr bool kHost = true;

  static Status forward(OpKernelContext* context, const RtfScanShape& shape, const Pointers& a, const Pointers& b,
                        const Pointers& h0, const Results& h, const Results& h_last) {
    const RtfThreads threads = tf_threads(context);
    rtf_scan_forward_f32(&shape, a.at, b.at, h0.at, h.at, h_last.at, &threads);
    return OkStatus();
  }

  static Status backward(OpKernelContext* context, const RtfScanShape& shape, const Pointers& a, const Pointers& h0,
                         const Pointers& h, const Pointers& dh, const Pointers& dh_last, const Results& da,
                         const Results& db, const Results& dh0) {
    const RtfThreads threads = tf_threads(context);
    rtf_scan_backward_f32(&shape, a.at, h0.at, h.at, dh.at, dh_last.at, da.at, db.at, dh0.at, &threads);
    return OkStatus();
  }
};

#if RTF_CUDA
struct Gpu {
  static constexpr bool kHost = false;

  static Status forward(OpKernelContext* context, const RtfScanShape& shape, const Pointers& a, const Pointers& b,
                        const Pointers& h0, const Results& h, const Results& h_last) {
    return gpu_status("scan",
                      rtf_scan_forward_cuda_f32(&shape, a.at, b.at, h0.at, h.at, h_last.at, gpu_stream(context)));
  }

  static Status backward(OpKernelContext* context, const RtfScanShape& shape, const Pointers& a, const Pointers& h0,
                         const Pointers& h, const Pointers& dh, const Pointers& dh_last, const Results& da,
                         const Results& db, const Results& dh0) {
    return gpu_status("scan", rtf_scan_backward_cuda_f32(&shape, a.at, h0.at, h.at, dh.at, dh_last.at, da.at, db.at,
                                                         dh0.at, gpu_stream(context)));
  }
};
#endif

class ScanBase : public OpKernel {
 public:
  explicit ScanBase(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "reverse", &reverse_, "parts", &parts_);
    OP_REQUIRES(construction, parts_ <= 2, InvalidArgument("scan: a number has one part, or two"));
  }

 protected:
  // Checks the inputs; those numbered b, a and h0 are the first ones of their lists. On a GPU lengths are in its memory
  // and can't be looked at.
  Status check(OpKernelContext* context, int b, int h0, bool host, RtfScanShape* shape) const {
    const TensorShape& all = context->input(b).shape();
    const Tensor& lengths = context->input(context->num_inputs() - 1);
    if (all.dims() != 3)
      return InvalidArgument("scan: arrays have to be [time, batch, units], not ", all.DebugString());
    const int64_t frames = all.dim_size(0), batch = all.dim_size(1), units = all.dim_size(2);
    const TensorShape& factors = context->input(0).shape();
    if (factors != all && factors != TensorShape({units}))
      return InvalidArgument("scan: factors have to be ", all.DebugString(), " or [", units, "], but are ",
                             factors.DebugString());
    for (int p = 0; p < parts_; ++p) {
      if (context->input(p).shape() != factors || context->input(b + p).shape() != all)
        return InvalidArgument("scan: the parts of complex numbers differ in their shapes");
      if (context->input(h0 + p).shape() != TensorShape({batch, units}))
        return InvalidArgument("scan: the initial state has to be [", batch, ", ", units, "], but is ",
                               context->input(h0 + p).shape().DebugString());
    }
    shape->parts = parts_;
    shape->constant = factors.dims() == 1;
    return read_sequences("scan", frames, batch, units, lengths, reverse_, &shape->sequences, host);
  }

  bool reverse_;
  int parts_;
};

template <class Device>
class ScanOp : public ScanBase {
 public:
  using ScanBase::ScanBase;

  void Compute(OpKernelContext* context) override {
    RtfScanShape shape;
    OP_REQUIRES_OK(context, check(context, parts_, 2 * parts_, Device::kHost, &shape));
    Results h, h_last;
    OP_REQUIRES_OK(context, h.allocate(context, 0, parts_, context->input(parts_).shape()));
    OP_REQUIRES_OK(context, h_last.allocate(context, parts_, parts_, context->input(2 * parts_).shape()));
    OP_REQUIRES_OK(context,
                   Device::forward(context, shape, Pointers(context, 0, parts_), Pointers(context, parts_, parts_),
                                   Pointers(context, 2 * parts_, parts_), h, h_last));
  }
};

template <class Device>
class ScanGradOp : public ScanBase {
 public:
  using ScanBase::ScanBase;

  void Compute(OpKernelContext* context) override {
    RtfScanShape shape;
    OP_REQUIRES_OK(context, check(context, 2 * parts_, parts_, Device::kHost, &shape));
    const TensorShape &all = context->input(2 * parts_).shape(), &state = context->input(parts_).shape();
    for (int p = 0; p < parts_; ++p)
      OP_REQUIRES(context,
                  context->input(3 * parts_ + p).shape() == all && context->input(4 * parts_ + p).shape() == state,
                  InvalidArgument("scan: the gradients do not have the shape of what they are gradients of"));
    Results da, db, dh0;
    OP_REQUIRES_OK(context, da.allocate(context, 0, parts_, shape.constant ? state : all));
    OP_REQUIRES_OK(context, db.allocate(context, parts_, parts_, all));
    OP_REQUIRES_OK(context, dh0.allocate(context, 2 * parts_, parts_, state));
    const auto list = [&](int index) { return Pointers(context, index * parts_, parts_); };
    OP_REQUIRES_OK(context, Device::backward(context, shape, list(0), list(1), list(2), list(3), list(4), da, db, dh0));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfScan").Device(DEVICE_CPU), ScanOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfScanGrad").Device(DEVICE_CPU), ScanGradOp<Cpu>);
#if RTF_CUDA
REGISTER_KERNEL_BUILDER(Name("RtfScan").Device(DEVICE_GPU), ScanOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfScanGrad").Device(DEVICE_GPU), ScanGradOp<Gpu>);
#endif

}  // namespace
}  // namespace rtf
