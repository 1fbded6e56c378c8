// The LSTM as TensorFlow ops: shapes, memory and threads. The arithmetic is in lstm_cpu.cc.
#include "../common/tf_op.h"
#include "lstm.h"

namespace rtf {
namespace {

REGISTER_OP("RtfLstm")
    .Attr("reverse: bool")
    .Input("z: float")        // [T, B, 4H]: W x + b
    .Input("r: float")        // [H, 4H]
    .Input("c0: float")       // [B, H]
    .Input("h0: float")       // [B, H]
    .Input("lengths: int32")  // [B]
    .Output("h: float")       // [T, B, H]
    .Output("c: float")       // [T, B, H]
    .Output("gates: float")   // [T, B, 4H]
    .Output("c_last: float")  // [B, H]
    .Output("h_last: float")  // [B, H]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle z, r, state;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &z));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 2, &r));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 2, &state));
      const DimensionHandle units = context->Dim(r, 0);
      const ShapeHandle all = context->MakeShape({context->Dim(z, 0), context->Dim(z, 1), units});
      context->set_output(0, all);
      context->set_output(1, all);
      context->set_output(2, z);
      context->set_output(3, state);
      context->set_output(4, state);
      return tensorflow::OkStatus();
    });

REGISTER_OP("RtfLstmGrad")
    .Attr("reverse: bool")
    .Input("r: float")
    .Input("c0: float")
    .Input("lengths: int32")
    .Input("c: float")
    .Input("gates: float")
    .Input("dh: float")
    .Input("dc_last: float")
    .Input("dh_last: float")
    .Output("dz: float")   // [T, B, 4H]
    .Output("dc0: float")  // [B, H]
    .Output("dh0: float")  // [B, H]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(4));
      context->set_output(1, context->input(1));
      context->set_output(2, context->input(1));
      return tensorflow::OkStatus();
    });

// The sizes of a call, or why they do not fit.
Status check_shapes(const TensorShape& gates, const TensorShape& r, const TensorShape& c0, const Tensor& lengths,
                    RtfLstmShape* shape) {
  if (r.dims() != 2 || r.dim_size(0) < 1 || r.dim_size(1) != 4 * r.dim_size(0))
    return InvalidArgument("LSTM: recurrent weights have to be [units, 4 * units] with at least one unit, but are ",
                           r.DebugString());
  const int64_t units = r.dim_size(0);
  if (gates.dims() != 3 || gates.dim_size(2) != 4 * units)
    return InvalidArgument("LSTM: input has to be [time, batch, ", 4 * units, "], but is ", gates.DebugString());
  const int64_t frames = gates.dim_size(0), batch = gates.dim_size(1);
  if (c0 != TensorShape({batch, units}))
    return InvalidArgument("LSTM: states have to be [", batch, ", ", units, "], but are ", c0.DebugString());
  if (lengths.shape() != TensorShape({batch}))
    return InvalidArgument("LSTM: lengths have to be [", batch, "], but are ", lengths.shape().DebugString());
  const int32_t* values = lengths.flat<int32_t>().data();
  for (int64_t b = 0; b < batch; ++b)
    if (values[b] < 0 || values[b] > frames)
      return InvalidArgument("LSTM: sequence ", b, " of the batch has length ", values[b], ", but there are ", frames,
                             " frames");
  *shape = RtfLstmShape{frames, batch, units, values, 0};
  return tensorflow::OkStatus();
}

class LstmOp : public OpKernel {
 public:
  explicit LstmOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("reverse", &reverse_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &z = context->input(0), &r = context->input(1), &c0 = context->input(2), &h0 = context->input(3);
    RtfLstmShape shape;
    OP_REQUIRES_OK(context, check_shapes(z.shape(), r.shape(), c0.shape(), context->input(4), &shape));
    OP_REQUIRES(context, h0.shape() == c0.shape(), InvalidArgument("LSTM: the two initial states differ in shape"));
    shape.reverse = reverse_;
    const TensorShape all({shape.frames, shape.batch, shape.units});
    Tensor *h, *c, *gates, *c_last, *h_last, scratch;
    OP_REQUIRES_OK(context, context->allocate_output(0, all, &h));
    OP_REQUIRES_OK(context, context->allocate_output(1, all, &c));
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 2, z.shape(), &gates));
    OP_REQUIRES_OK(context, context->allocate_output(3, c0.shape(), &c_last));
    OP_REQUIRES_OK(context, context->allocate_output(4, c0.shape(), &h_last));
    const TensorShape scratch_shape({rtf_lstm_scratch_size(shape.units)});
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, scratch_shape, &scratch));
    const RtfThreads threads = tf_threads(context);
    rtf_lstm_forward_f32(&shape, z.flat<float>().data(), r.flat<float>().data(), c0.flat<float>().data(),
                         h0.flat<float>().data(), h->flat<float>().data(), c->flat<float>().data(),
                         gates->flat<float>().data(), c_last->flat<float>().data(), h_last->flat<float>().data(),
                         scratch.flat<float>().data(), &threads);
  }

 private:
  bool reverse_;
};

class LstmGradOp : public OpKernel {
 public:
  explicit LstmGradOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("reverse", &reverse_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &r = context->input(0), &c0 = context->input(1), &c = context->input(3), &gates = context->input(4);
    const Tensor &dh = context->input(5), &dc_last = context->input(6), &dh_last = context->input(7);
    RtfLstmShape shape;
    OP_REQUIRES_OK(context, check_shapes(gates.shape(), r.shape(), c0.shape(), context->input(2), &shape));
    const TensorShape all({shape.frames, shape.batch, shape.units});
    OP_REQUIRES(context, c.shape() == all && dh.shape() == all && dc_last.shape() == c0.shape() &&
                             dh_last.shape() == c0.shape(),
                InvalidArgument("LSTM: the gradients do not have the shape of what they are gradients of"));
    shape.reverse = reverse_;
    Tensor *dz, *dc0, *dh0, scratch;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({4}, 0, gates.shape(), &dz));
    OP_REQUIRES_OK(context, context->allocate_output(1, c0.shape(), &dc0));
    OP_REQUIRES_OK(context, context->allocate_output(2, c0.shape(), &dh0));
    const TensorShape scratch_shape({rtf_lstm_scratch_size(shape.units)});
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_FLOAT, scratch_shape, &scratch));
    const RtfThreads threads = tf_threads(context);
    rtf_lstm_backward_f32(&shape, r.flat<float>().data(), c0.flat<float>().data(), c.flat<float>().data(),
                          gates.flat<float>().data(), dh.flat<float>().data(), dc_last.flat<float>().data(),
                          dh_last.flat<float>().data(), dz->flat<float>().data(), dc0->flat<float>().data(),
                          dh0->flat<float>().data(), scratch.flat<float>().data(), &threads);
  }

 private:
  bool reverse_;
};

REGISTER_KERNEL_BUILDER(Name("RtfLstm").Device(tensorflow::DEVICE_CPU), LstmOp);
REGISTER_KERNEL_BUILDER(Name("RtfLstmGrad").Device(tensorflow::DEVICE_CPU), LstmGradOp);

}  // namespace
}  // namespace rtf
