// Selective state spaces as TensorFlow ops. The kernels are in selective_scan_cpu.cc and selective_scan_cuda.cu.
#include "../common/tf_sequences.h"
#include "selective_scan.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#endif

namespace rtf {
namespace {

REGISTER_OP("RtfSelectiveScan")
    .Attr("reverse: bool")
    .Input("x: float")             // [T, B, H]
    .Input("delta: float")         // [T, B, H]
    .Input("a: float")             // [N, H]
    .Input("b: float")             // [T, B, N]
    .Input("c: float")             // [T, B, N]
    .Input("d: float")             // [H]
    .Input("h0: float")            // [B, N, H]
    .Input("lengths: int32")       // [B]
    .Output("y: float")            // [T, B, H]
    .Output("h_last: float")       // [B, N, H]
    .Output("checkpoints: float")  // for the gradient
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      context->set_output(1, context->input(6));
      context->set_output(2, context->UnknownShapeOfRank(4));
      return OkStatus();
    });

REGISTER_OP("RtfSelectiveScanGrad")
    .Attr("reverse: bool")
    .Input("x: float")
    .Input("delta: float")
    .Input("a: float")
    .Input("b: float")
    .Input("c: float")
    .Input("d: float")
    .Input("h0: float")
    .Input("lengths: int32")
    .Input("checkpoints: float")
    .Input("dy: float")
    .Input("dh_last: float")
    .Output("dx: float")
    .Output("ddelta: float")
    .Output("da: float")  // [B, N, H]
    .Output("db: float")
    .Output("dc: float")
    .Output("dd: float")  // [B, H]
    .Output("dh0: float")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &x));
      const int inputs[] = {0, 1, 6, 3, 4, -1, 6};
      for (int i = 0; i < 7; ++i)
        context->set_output(i, inputs[i] < 0 ? context->MakeShape({context->Dim(x, 1), context->Dim(x, 2)})
                                             : context->input(inputs[i]));
      return OkStatus();
    });

// The results of a pass.
struct Forward {
  float *y, *h_last, *checkpoints;
};

struct Backward {
  const float *checkpoints, *dy, *dh_last;
  RtfSelectiveGradients gradients;
};

// Runs the CPU kernels on TensorFlow's threads.
struct Cpu {
  static constexpr bool kHost = true;

  static int64_t scratch_size(const RtfSelectiveShape& shape) { return rtf_selective_scratch_size(&shape); }

  static Status run(OpKernelContext* context, const RtfSelectiveShape& shape, const RtfSelectiveInputs& inputs,
                    const Forward& x) {
    const RtfThreads threads = tf_threads(context);
    rtf_selective_forward_f32(&shape, &inputs, x.y, x.h_last, x.checkpoints, &threads);
    return OkStatus();
  }

  static Status run(OpKernelContext* context, const RtfSelectiveShape& shape, const RtfSelectiveInputs& inputs,
                    const Backward& x, float* scratch) {
    const RtfThreads threads = tf_threads(context);
    rtf_selective_backward_f32(&shape, &inputs, x.checkpoints, x.dy, x.dh_last, &x.gradients, scratch, &threads);
    return OkStatus();
  }
};

#if RTF_CUDA
// Runs the GPU kernels on TensorFlow's stream.
struct Gpu {
  static constexpr bool kHost = false;

  static int64_t scratch_size(const RtfSelectiveShape& shape) { return rtf_selective_cuda_scratch_size(&shape); }

  static Status run(OpKernelContext* context, const RtfSelectiveShape& shape, const RtfSelectiveInputs& inputs,
                    const Forward& x) {
    return gpu_status("selective scan", rtf_selective_forward_cuda_f32(&shape, &inputs, x.y, x.h_last, x.checkpoints,
                                                                       gpu_stream(context)));
  }

  static Status run(OpKernelContext* context, const RtfSelectiveShape& shape, const RtfSelectiveInputs& inputs,
                    const Backward& x, float* scratch) {
    return gpu_status("selective scan", rtf_selective_backward_cuda_f32(&shape, &inputs, x.checkpoints, x.dy, x.dh_last,
                                                                        &x.gradients, scratch, gpu_stream(context)));
  }
};
#endif

class SelectiveBase : public OpKernel {
 public:
  explicit SelectiveBase(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "reverse", &reverse_);
  }

 protected:
  // Checks the inputs. On a GPU lengths are in its memory and can't be looked at.
  Status check(OpKernelContext* context, bool host, RtfSelectiveShape* shape, RtfSelectiveInputs* inputs) const {
    const TensorShape &all = context->input(0).shape(), &a = context->input(2).shape();
    if (all.dims() != 3 || all.dim_size(2) < 1)
      return InvalidArgument("selective scan: x has to be [time, batch, channels], but is ", all.DebugString());
    const int64_t frames = all.dim_size(0), batch = all.dim_size(1), width = all.dim_size(2);
    if (a.dims() != 2 || a.dim_size(0) < 1 || a.dim_size(1) != width)
      return InvalidArgument("selective scan: a has to be [states, ", width, "], but is ", a.DebugString());
    const int64_t states = a.dim_size(0);
    const struct {
      int index;
      const char* name;
      TensorShape wanted;
    } others[] = {{1, "delta", all},
                  {3, "b", TensorShape({frames, batch, states})},
                  {4, "c", TensorShape({frames, batch, states})},
                  {5, "d", TensorShape({width})},
                  {6, "h0", TensorShape({batch, states, width})}};
    for (const auto& other : others)
      if (context->input(other.index).shape() != other.wanted)
        return InvalidArgument("selective scan: ", other.name, " has to be ", other.wanted.DebugString(), ", but is ",
                               context->input(other.index).shape().DebugString());
    const auto data = [&](int index) { return floats(context->input(index)); };
    *inputs = {data(0), data(1), data(2), data(3), data(4), data(5), data(6)};
    shape->states = states;
    return read_sequences("selective scan", frames, batch, width, context->input(7), reverse_, &shape->sequences, host);
  }

  TensorShape checkpoints(const RtfSelectiveShape& shape) const {
    const RtfSequences& s = shape.sequences;
    return TensorShape({rtf_selective_checkpoints(s.frames), s.batch, shape.states, s.units});
  }

  bool reverse_;
};

template <class Device>
class SelectiveOp : public SelectiveBase {
 public:
  using SelectiveBase::SelectiveBase;

  void Compute(OpKernelContext* context) override {
    RtfSelectiveShape shape;
    RtfSelectiveInputs inputs;
    OP_REQUIRES_OK(context, check(context, Device::kHost, &shape, &inputs));
    Tensor *y, *h_last, *kept;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &y));
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(6).shape(), &h_last));
    OP_REQUIRES_OK(context, context->allocate_output(2, checkpoints(shape), &kept));
    OP_REQUIRES_OK(context, Device::run(context, shape, inputs, Forward{floats(y), floats(h_last), floats(kept)}));
  }
};

template <class Device>
class SelectiveGradOp : public SelectiveBase {
 public:
  using SelectiveBase::SelectiveBase;

  void Compute(OpKernelContext* context) override {
    RtfSelectiveShape shape;
    RtfSelectiveInputs inputs;
    OP_REQUIRES_OK(context, check(context, Device::kHost, &shape, &inputs));
    const Tensor &kept = context->input(8), &dy = context->input(9), &dh_last = context->input(10);
    OP_REQUIRES(context,
                kept.shape() == checkpoints(shape) && dy.shape() == context->input(0).shape() &&
                    dh_last.shape() == context->input(6).shape(),
                InvalidArgument("selective scan: the gradients do not have the shape of what they are gradients of"));
    const TensorShape state = context->input(6).shape();
    const TensorShape wanted[] = {context->input(0).shape(),
                                  context->input(1).shape(),
                                  state,
                                  context->input(3).shape(),
                                  context->input(4).shape(),
                                  TensorShape({shape.sequences.batch, shape.sequences.units}),
                                  state};
    float* out[7];
    for (int i = 0; i < 7; ++i) {
      Tensor* tensor;
      OP_REQUIRES_OK(context, context->allocate_output(i, wanted[i], &tensor));
      out[i] = floats(tensor);
    }
    Tensor scratch;
    OP_REQUIRES_OK(context, allocate_scratch(context, Device::scratch_size(shape), &scratch));
    const Backward pass = {
        floats(kept), floats(dy), floats(dh_last), {out[0], out[1], out[2], out[3], out[4], out[5], out[6]}};
    OP_REQUIRES_OK(context, Device::run(context, shape, inputs, pass, floats(&scratch)));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfSelectiveScan").Device(DEVICE_CPU), SelectiveOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfSelectiveScanGrad").Device(DEVICE_CPU), SelectiveGradOp<Cpu>);
#if RTF_CUDA
REGISTER_KERNEL_BUILDER(Name("RtfSelectiveScan").Device(DEVICE_GPU), SelectiveOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfSelectiveScanGrad").Device(DEVICE_GPU), SelectiveGradOp<Gpu>);
#endif

}  // namespace
}  // namespace rtf
