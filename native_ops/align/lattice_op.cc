// Alignments by acceptors and the transducer as TensorFlow ops. The arithmetic is in the files named like them.
#include "op_inputs.h"

namespace rtf {
namespace {

REGISTER_OP("RtfAcceptorSoft")
    .Input("scores: float")       // [T, B, F]
    .Input("lengths: int32")      // [B]
    .Input("edges: int32")        // [B, E, 3]
    .Input("costs: float")        // [B, E]
    .Input("num_states: int32")   // [B]
    .Output("posteriors: float")  // [T, B, F]
    .Output("total: float")       // [B]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      context->set_output(1, context->input(1));
      return tensorflow::OkStatus();
    });

REGISTER_OP("RtfTransducer")
    .Attr("blank: int")
    .Attr("label_takes_frame: bool")
    .Attr("normalized: bool")
    .Input("scores: float")         // [B, T, L + 1, F]
    .Input("lengths: int32")        // [B]
    .Input("labels: int32")         // [B, L]
    .Input("label_lengths: int32")  // [B]
    .Output("loss: float")          // [B]
    .Output("gradient: float")      // [B, T, L + 1, F]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(1));
      context->set_output(1, context->input(0));
      return tensorflow::OkStatus();
    });

class AcceptorSoftOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    RtfScores scores;
    RtfAcceptors acceptors;
    OP_REQUIRES_OK(context, check_scores(context->input(0), context->input(1), &scores));
    OP_REQUIRES_OK(context, check_acceptors(context, scores, &acceptors));
    Tensor *posteriors, *total, scratch;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &posteriors));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({scores.batch}), &total));
    const RtfThreads threads = tf_threads(context);
    const int64_t size = rtf_acceptor_scratch_size(scores.frames, &acceptors, threads.n_threads);
    OP_REQUIRES_OK(context, allocate_scratch(context, size, &scratch));
    rtf_acceptor_soft_f32(&scores, &acceptors, posteriors->flat<float>().data(), total->flat<float>().data(),
                          scratch.flat<float>().data(), &threads);
  }

 private:
  static Status check_acceptors(OpKernelContext* context, const RtfScores& scores, RtfAcceptors* acceptors) {
    const Tensor &edges = context->input(2), &costs = context->input(3), &num_states = context->input(4);
    if (edges.dims() != 3 || edges.dim_size(0) != scores.batch || edges.dim_size(2) != 3)
      return InvalidArgument("alignment: edges have to be [", scores.batch, ", any, 3], but are ",
                             edges.shape().DebugString());
    const int64_t n_edges = edges.dim_size(1);
    if (costs.shape() != TensorShape({scores.batch, n_edges}))
      return InvalidArgument("alignment: costs have to be [", scores.batch, ", ", n_edges, "], but are ",
                             costs.shape().DebugString());
    TF_RETURN_IF_ERROR(check_lengths("number of states", num_states, scores.batch, INT32_MAX));
    const int32_t *arc = edges.flat<int32_t>().data(), *counts = num_states.flat<int32_t>().data();
    int64_t states = 1;
    for (int64_t b = 0; b < scores.batch; ++b) {
      if (counts[b] < 1) return InvalidArgument("alignment: sequence ", b, " has an automaton without a state");
      states = std::max<int64_t>(states, counts[b]);
      for (int64_t i = 0; i < n_edges; ++i, arc += 3)
        if (arc[2] >= 0 && (arc[0] < 0 || arc[1] < 0 || arc[0] >= counts[b] || arc[1] >= counts[b] || arc[2] >= scores.classes))
          return InvalidArgument("alignment: sequence ", b, " has the edge (from ", arc[0], ", to ", arc[1], ", class ", arc[2],
                                 "), but there are ", counts[b], " states and ", scores.classes, " classes");
    }
    *acceptors = RtfAcceptors{n_edges, states, edges.flat<int32_t>().data(), costs.flat<float>().data(), counts};
    return tensorflow::OkStatus();
  }
};

class TransducerOp : public OpKernel {
 public:
  explicit TransducerOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("blank", &blank_));
    OP_REQUIRES_OK(construction, construction->GetAttr("label_takes_frame", &label_takes_frame_));
    OP_REQUIRES_OK(construction, construction->GetAttr("normalized", &normalized_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &values = context->input(0), &lengths = context->input(1), &labels = context->input(2);
    OP_REQUIRES(context, labels.dims() == 2, InvalidArgument("alignment: labels have to be [batch, labels]"));
    const int64_t batch = labels.dim_size(0), max_labels = labels.dim_size(1);
    OP_REQUIRES(context, values.dims() == 4 && values.dim_size(0) == batch && values.dim_size(2) == max_labels + 1,
                InvalidArgument("alignment: scores have to be [", batch, ", time, ", max_labels + 1, ", classes], but are ",
                                values.shape().DebugString()));
    const int64_t frames = values.dim_size(1), classes = values.dim_size(3);
    OP_REQUIRES(context, blank_ >= 0 && blank_ < classes,
                InvalidArgument("alignment: blank ", blank_, ", but there are ", classes, " classes"));
    OP_REQUIRES_OK(context, check_lengths("length", lengths, batch, frames));
    OP_REQUIRES_OK(context, check_lengths("number of labels", context->input(3), batch, max_labels));
    const int32_t* counts = context->input(3).flat<int32_t>().data();
    OP_REQUIRES_OK(context, check_classes("labels", labels, counts, batch, classes));
    const RtfTransducer transducer = {batch, frames, max_labels, classes, values.flat<float>().data(),
                                      lengths.flat<int32_t>().data(), labels.flat<int32_t>().data(), counts,
                                      static_cast<int32_t>(blank_), label_takes_frame_, normalized_};
    Tensor *loss, *gradient, scratch;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({batch}), &loss));
    OP_REQUIRES_OK(context, context->allocate_output(1, values.shape(), &gradient));
    const RtfThreads threads = tf_threads(context);
    OP_REQUIRES_OK(context,
                   allocate_scratch(context, rtf_transducer_scratch_size(&transducer, threads.n_threads), &scratch));
    rtf_transducer_f32(&transducer, loss->flat<float>().data(), gradient->flat<float>().data(), scratch.flat<float>().data(),
                       &threads);
  }

 private:
  int64_t blank_;
  bool label_takes_frame_, normalized_;
};

REGISTER_KERNEL_BUILDER(Name("RtfAcceptorSoft").Device(tensorflow::DEVICE_CPU), AcceptorSoftOp);
REGISTER_KERNEL_BUILDER(Name("RtfTransducer").Device(tensorflow::DEVICE_CPU), TransducerOp);

}  // namespace
}  // namespace rtf
