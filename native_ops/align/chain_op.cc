// Alignments by chains of states, and CTC, as TensorFlow ops. The arithmetic is in chain_cpu.cc.
#include "op_inputs.h"

namespace rtf {
namespace {

REGISTER_OP("RtfChainSoft")
    .Attr("optional_ends: bool")
    .Input("scores: float")      // [T, B, F]
    .Input("lengths: int32")     // [B]
    .Input("classes: int32")     // [B, S]
    .Input("num_states: int32")  // [B]
    .Input("loop: bool")         // [B, S]
    .Input("skip: bool")         // [B, S]
    .Output("posteriors: float")  // [T, B, F]
    .Output("total: float")       // [B]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(0));
      context->set_output(1, context->input(1));
      return tensorflow::OkStatus();
    });

REGISTER_OP("RtfChainBest")
    .Attr("optional_ends: bool")
    .Input("scores: float")
    .Input("lengths: int32")
    .Input("classes: int32")
    .Input("num_states: int32")
    .Input("loop: bool")
    .Input("skip: bool")
    .Output("path: int32")   // [T, B]
    .Output("total: float")  // [B]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle scores;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &scores));
      context->set_output(0, context->Matrix(context->Dim(scores, 0), context->Dim(scores, 1)));
      context->set_output(1, context->input(1));
      return tensorflow::OkStatus();
    });

REGISTER_OP("RtfCtc")
    .Attr("blank: int")
    .Attr("label_loop: bool")
    .Attr("normalized: bool")
    .Attr("softmax_without_alignment: bool")
    .Input("scores: float")         // [T, B, F]
    .Input("lengths: int32")        // [B]
    .Input("labels: int32")         // [B, L]
    .Input("label_lengths: int32")  // [B]
    .Output("loss: float")          // [B]
    .Output("gradient: float")      // [T, B, F]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(1));
      context->set_output(1, context->input(0));
      return tensorflow::OkStatus();
    });

class ChainOp : public OpKernel {
 public:
  explicit ChainOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("optional_ends", &optional_ends_));
  }

 protected:
  // Checks the inputs and allocates what both ops need.
  Status prepare(OpKernelContext* context, RtfScores* scores, RtfChains* chains, Tensor** total, Tensor* scratch) const {
    TF_RETURN_IF_ERROR(check_scores(context->input(0), context->input(1), scores));
    const Tensor &classes = context->input(2), &num_states = context->input(3);
    if (classes.dims() != 2) return InvalidArgument("alignment: states have to be [batch, states]");
    const int64_t states = classes.dim_size(1);
    TF_RETURN_IF_ERROR(check_lengths("number of states", num_states, scores->batch, states));
    const int32_t* counts = num_states.flat<int32_t>().data();
    TF_RETURN_IF_ERROR(check_classes("states", classes, counts, scores->batch, scores->classes));
    for (int index : {4, 5})
      if (context->input(index).shape() != classes.shape())
        return InvalidArgument("alignment: loop and skip have to have the shape of the states, ",
                               classes.shape().DebugString());
    *chains = RtfChains{states, classes.flat<int32_t>().data(), counts, flags(context->input(4)), flags(context->input(5)),
                        optional_ends_};
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({scores->batch}), total));
    const int n_threads = tf_threads(context).n_threads;
    return allocate_scratch(context, rtf_chain_scratch_size(scores->frames, states, n_threads), scratch);
  }

 private:
  static const uint8_t* flags(const Tensor& tensor) {
    static_assert(sizeof(bool) == 1, "flags are bytes");
    return reinterpret_cast<const uint8_t*>(tensor.flat<bool>().data());
  }

  bool optional_ends_;
};

class ChainSoftOp : public ChainOp {
 public:
  using ChainOp::ChainOp;

  void Compute(OpKernelContext* context) override {
    RtfScores scores;
    RtfChains chains;
    Tensor *posteriors, *total, scratch;
    OP_REQUIRES_OK(context, prepare(context, &scores, &chains, &total, &scratch));
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &posteriors));
    const RtfThreads threads = tf_threads(context);
    rtf_chain_soft_f32(&scores, &chains, posteriors->flat<float>().data(), total->flat<float>().data(),
                       scratch.flat<float>().data(), &threads);
  }
};

class ChainBestOp : public ChainOp {
 public:
  using ChainOp::ChainOp;

  void Compute(OpKernelContext* context) override {
    RtfScores scores;
    RtfChains chains;
    Tensor *path, *total, scratch;
    OP_REQUIRES_OK(context, prepare(context, &scores, &chains, &total, &scratch));
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({scores.frames, scores.batch}), &path));
    const RtfThreads threads = tf_threads(context);
    rtf_chain_best_f32(&scores, &chains, path->flat<int32_t>().data(), total->flat<float>().data(),
                       scratch.flat<float>().data(), &threads);
  }
};

class CtcOp : public OpKernel {
 public:
  explicit CtcOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("blank", &blank_));
    OP_REQUIRES_OK(construction, construction->GetAttr("label_loop", &label_loop_));
    OP_REQUIRES_OK(construction, construction->GetAttr("normalized", &normalized_));
    OP_REQUIRES_OK(construction, construction->GetAttr("softmax_without_alignment", &softmax_));
  }

  void Compute(OpKernelContext* context) override {
    RtfScores scores;
    OP_REQUIRES_OK(context, check_scores(context->input(0), context->input(1), &scores));
    const Tensor &labels = context->input(2), &label_lengths = context->input(3);
    OP_REQUIRES(context, blank_ >= 0 && blank_ < scores.classes,
                InvalidArgument("alignment: blank ", blank_, ", but there are ", scores.classes, " classes"));
    OP_REQUIRES(context, labels.dims() == 2, InvalidArgument("alignment: labels have to be [batch, labels]"));
    OP_REQUIRES_OK(context, check_lengths("number of labels", label_lengths, scores.batch, labels.dim_size(1)));
    const int32_t* counts = label_lengths.flat<int32_t>().data();
    OP_REQUIRES_OK(context, check_classes("labels", labels, counts, scores.batch, scores.classes));
    const RtfCtc ctc = {labels.dim_size(1), labels.flat<int32_t>().data(), counts, static_cast<int32_t>(blank_),
                        label_loop_, normalized_, softmax_};
    Tensor *loss, *gradient, scratch;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({scores.batch}), &loss));
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(0).shape(), &gradient));
    const RtfThreads threads = tf_threads(context);
    const int64_t size = rtf_chain_scratch_size(scores.frames, 2 * ctc.max_labels + 1, threads.n_threads);
    OP_REQUIRES_OK(context, allocate_scratch(context, size, &scratch));
    rtf_ctc_f32(&scores, &ctc, loss->flat<float>().data(), gradient->flat<float>().data(), scratch.flat<float>().data(),
                &threads);
  }

 private:
  int64_t blank_;
  bool label_loop_, normalized_, softmax_;
};

REGISTER_KERNEL_BUILDER(Name("RtfChainSoft").Device(tensorflow::DEVICE_CPU), ChainSoftOp);
REGISTER_KERNEL_BUILDER(Name("RtfChainBest").Device(tensorflow::DEVICE_CPU), ChainBestOp);
REGISTER_KERNEL_BUILDER(Name("RtfCtc").Device(tensorflow::DEVICE_CPU), CtcOp);

}  // namespace
}  // namespace rtf
