// The GRU as TensorFlow ops: shapes, memory and threads. The arithmetic is in gru_cpu.cc.
#include "../common/tf_sequences.h"
#include "gru.h"

namespace rtf {
namespace {

// Lengths are in the memory of the host.
REGISTER_OP("RtfGru")
    .Attr("reverse: bool")
    .Input("z: float")            // [T, B, 3H]: W x + b of r, u, c
    .Input("r_gates: float")      // [H, 2H]
    .Input("r_candidate: float")  // [H, H]
    .Input("h0: float")           // [B, H]
    .Input("lengths: int32")      // [B]
    .Output("h: float")           // [T, B, H]
    .Output("gates: float")       // [T, B, 3H]
    .Output("h_last: float")      // [B, H]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle z, weights, state;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &z));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 2, &weights));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(3), 2, &state));
      context->set_output(0, context->MakeShape({context->Dim(z, 0), context->Dim(z, 1), context->Dim(weights, 0)}));
      context->set_output(1, z);
      context->set_output(2, state);
      return tensorflow::OkStatus();
    });

REGISTER_OP("RtfGruGrad")
    .Attr("reverse: bool")
    .Input("r_gates: float")
    .Input("r_candidate: float")
    .Input("h0: float")
    .Input("lengths: int32")
    .Input("h: float")
    .Input("gates: float")
    .Input("dh: float")
    .Input("dh_last: float")
    .Output("dz: float")       // [T, B, 3H]
    .Output("reset_h: float")  // [T, B, H]: r h_{t-1}
    .Output("dh0: float")      // [B, H]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(5));
      context->set_output(1, context->input(4));
      context->set_output(2, context->input(2));
      return tensorflow::OkStatus();
    });

// The sizes of a call, or why they do not fit.
Status check_shapes(const TensorShape& gates, const TensorShape& r_gates, const TensorShape& r_candidate,
                    const TensorShape& h0, const Tensor& lengths, bool reverse, RtfGruShape* shape) {
  const int64_t units = r_candidate.dims() == 2 ? r_candidate.dim_size(0) : 0;
  if (units < 1 || r_candidate != TensorShape({units, units}))
    return InvalidArgument("GRU: recurrent weights of the candidate have to be [units, units] with at least one unit, but are ",
                           r_candidate.DebugString());
  if (r_gates != TensorShape({units, 2 * units}))
    return InvalidArgument("GRU: recurrent weights of the gates have to be [", units, ", ", 2 * units, "], but are ",
                           r_gates.DebugString());
  if (gates.dims() != 3 || gates.dim_size(2) != 3 * units)
    return InvalidArgument("GRU: input has to be [time, batch, ", 3 * units, "], but is ", gates.DebugString());
  const int64_t batch = gates.dim_size(1);
  if (h0 != TensorShape({batch, units}))
    return InvalidArgument("GRU: the initial state has to be [", batch, ", ", units, "], but is ", h0.DebugString());
  return read_sequences("GRU", gates.dim_size(0), batch, units, lengths, reverse, shape);
}

const float* in(const Tensor& tensor) { return tensor.flat<float>().data(); }
float* out(Tensor* tensor) { return tensor->flat<float>().data(); }

Status allocate_scratch(OpKernelContext* context, const RtfGruShape& shape, Tensor* scratch) {
  return context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({rtf_gru_scratch_size(&shape)}), scratch);
}

class GruOp : public OpKernel {
 public:
  explicit GruOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("reverse", &reverse_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &z = context->input(0), &r_gates = context->input(1), &r_candidate = context->input(2);
    const Tensor& h0 = context->input(3);
    RtfGruShape shape;
    OP_REQUIRES_OK(context, check_shapes(z.shape(), r_gates.shape(), r_candidate.shape(), h0.shape(), context->input(4),
                                         reverse_, &shape));
    Tensor *h, *gates, *h_last, scratch;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({shape.frames, shape.batch, shape.units}), &h));
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 1, z.shape(), &gates));
    OP_REQUIRES_OK(context, context->allocate_output(2, h0.shape(), &h_last));
    OP_REQUIRES_OK(context, allocate_scratch(context, shape, &scratch));
    const RtfThreads threads = tf_threads(context);
    rtf_gru_forward_f32(&shape, in(z), in(r_gates), in(r_candidate), in(h0), out(h), out(gates), out(h_last), out(&scratch),
                        &threads);
  }

 private:
  bool reverse_;
};

class GruGradOp : public OpKernel {
 public:
  explicit GruGradOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("reverse", &reverse_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &r_gates = context->input(0), &r_candidate = context->input(1), &h0 = context->input(2);
    const Tensor &h = context->input(4), &gates = context->input(5), &dh = context->input(6), &dh_last = context->input(7);
    RtfGruShape shape;
    OP_REQUIRES_OK(context, check_shapes(gates.shape(), r_gates.shape(), r_candidate.shape(), h0.shape(),
                                         context->input(3), reverse_, &shape));
    const TensorShape all({shape.frames, shape.batch, shape.units});
    OP_REQUIRES(context, h.shape() == all && dh.shape() == all && dh_last.shape() == h0.shape(),
                InvalidArgument("GRU: the gradients do not have the shape of what they are gradients of"));
    Tensor *dz, *reset_h, *dh0, scratch;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({5}, 0, gates.shape(), &dz));
    OP_REQUIRES_OK(context, context->allocate_output(1, all, &reset_h));
    OP_REQUIRES_OK(context, context->allocate_output(2, h0.shape(), &dh0));
    OP_REQUIRES_OK(context, allocate_scratch(context, shape, &scratch));
    const RtfThreads threads = tf_threads(context);
    rtf_gru_backward_f32(&shape, in(r_gates), in(r_candidate), in(h0), in(h), in(gates), in(dh), in(dh_last), out(dz),
                         out(reset_h), out(dh0), out(&scratch), &threads);
  }

 private:
  bool reverse_;
};

REGISTER_KERNEL_BUILDER(Name("RtfGru").Device(tensorflow::DEVICE_CPU).HostMemory("lengths"), GruOp);
REGISTER_KERNEL_BUILDER(Name("RtfGruGrad").Device(tensorflow::DEVICE_CPU).HostMemory("lengths"), GruGradOp);

}  // namespace
}  // namespace rtf
