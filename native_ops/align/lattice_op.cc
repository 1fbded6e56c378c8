// Alignments by acceptors, and the transducer, as TensorFlow ops. The kernels are in the files of the same names. On a
// GPU all integers stay in host memory, where they are checked.
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
    .SetShapeFn(posteriors_and_total);

REGISTER_OP("RtfAcceptorBest")
    .Input("scores: float")
    .Input("lengths: int32")
    .Input("edges: int32")
    .Input("costs: float")
    .Input("num_states: int32")
    .Output("path: int32")   // [T, B]
    .Output("total: float")  // [B]
    .SetShapeFn(path_and_total);

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
    .SetShapeFn(loss_and_gradient);

class AcceptorOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

 protected:
  // Checks the inputs and allocates the totals.
  static Status prepare(OpKernelContext* context, RtfScores* scores, RtfAcceptors* acceptors, Tensor** total) {
    TF_RETURN_IF_ERROR(check_scores(context->input(0), context->input(1), scores));
    TF_RETURN_IF_ERROR(check_acceptors(context, *scores, acceptors));
    return context->allocate_output(1, TensorShape({scores->batch}), total);
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
        if (arc[2] >= 0 &&
            (arc[0] < 0 || arc[1] < 0 || arc[0] >= counts[b] || arc[1] >= counts[b] || arc[2] >= scores.classes))
          return InvalidArgument("alignment: sequence ", b, " has the edge (from ", arc[0], ", to ", arc[1], ", class ",
                                 arc[2], "), but there are ", counts[b], " states and ", scores.classes, " classes");
    }
    *acceptors = RtfAcceptors{n_edges, states, edges.flat<int32_t>().data(), floats(costs), counts};
    return OkStatus();
  }
};

class AcceptorSoftOp : public AcceptorOp {
 public:
  using AcceptorOp::AcceptorOp;

  void Compute(OpKernelContext* context) override {
    RtfScores scores;
    RtfAcceptors acceptors;
    Tensor *posteriors, *total;
    OP_REQUIRES_OK(context, prepare(context, &scores, &acceptors, &total));
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &posteriors));
    OP_REQUIRES_OK(context, run(context, scores, acceptors, floats(posteriors), floats(total)));
  }

 protected:
  virtual Status run(OpKernelContext* context, const RtfScores& scores, const RtfAcceptors& acceptors,
                     float* posteriors, float* total) const {
    return run_on_cpu(
        context, [&](int n_threads) { return rtf_acceptor_scratch_size(scores.frames, &acceptors, n_threads); },
        [&](void* scratch, const RtfThreads* threads) {
          rtf_acceptor_soft_f32(&scores, &acceptors, posteriors, total, static_cast<float*>(scratch), threads);
        });
  }
};

class AcceptorBestOp : public AcceptorOp {
 public:
  using AcceptorOp::AcceptorOp;

  void Compute(OpKernelContext* context) override {
    RtfScores scores;
    RtfAcceptors acceptors;
    Tensor *path, *total;
    OP_REQUIRES_OK(context, prepare(context, &scores, &acceptors, &total));
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({scores.frames, scores.batch}), &path));
    OP_REQUIRES_OK(context, run(context, scores, acceptors, path->flat<int32_t>().data(), floats(total)));
  }

 protected:
  virtual Status run(OpKernelContext* context, const RtfScores& scores, const RtfAcceptors& acceptors, int32_t* path,
                     float* total) const {
    return run_on_cpu(
        context, [&](int n_threads) { return rtf_acceptor_best_scratch_size(scores.frames, &acceptors, n_threads); },
        [&](void* scratch, const RtfThreads* threads) {
          rtf_acceptor_best_f32(&scores, &acceptors, path, total, static_cast<int32_t*>(scratch), threads);
        });
  }
};

class TransducerOp : public OpKernel {
 public:
  explicit TransducerOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "blank", &blank_, "label_takes_frame", &label_takes_frame_, "normalized", &normalized_);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &values = context->input(0), &lengths = context->input(1), &labels = context->input(2);
    OP_REQUIRES(context, labels.dims() == 2, InvalidArgument("alignment: labels have to be [batch, labels]"));
    const int64_t batch = labels.dim_size(0), max_labels = labels.dim_size(1);
    OP_REQUIRES(context, values.dims() == 4 && values.dim_size(0) == batch && values.dim_size(2) == max_labels + 1,
                InvalidArgument("alignment: scores have to be [", batch, ", time, ", max_labels + 1,
                                ", classes], but are ", values.shape().DebugString()));
    const int64_t frames = values.dim_size(1), classes = values.dim_size(3);
    OP_REQUIRES(context, blank_ >= 0 && blank_ < classes,
                InvalidArgument("alignment: blank ", blank_, ", but there are ", classes, " classes"));
    OP_REQUIRES_OK(context, check_lengths("length", lengths, batch, frames));
    OP_REQUIRES_OK(context, check_lengths("number of labels", context->input(3), batch, max_labels));
    const int32_t* counts = context->input(3).flat<int32_t>().data();
    OP_REQUIRES_OK(context, check_classes("labels", labels, counts, batch, classes));
    const RtfTransducer transducer = {batch,
                                      frames,
                                      max_labels,
                                      classes,
                                      floats(values),
                                      lengths.flat<int32_t>().data(),
                                      labels.flat<int32_t>().data(),
                                      counts,
                                      static_cast<int32_t>(blank_),
                                      label_takes_frame_,
                                      normalized_};
    Tensor *loss, *gradient;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({batch}), &loss));
    OP_REQUIRES_OK(context, context->allocate_output(1, values.shape(), &gradient));
    OP_REQUIRES_OK(context, run(context, transducer, floats(loss), floats(gradient)));
  }

 protected:
  virtual Status run(OpKernelContext* context, const RtfTransducer& transducer, float* loss, float* gradient) const {
    return run_on_cpu(
        context, [&](int n_threads) { return rtf_transducer_scratch_size(&transducer, n_threads); },
        [&](void* scratch, const RtfThreads* threads) {
          rtf_transducer_f32(&transducer, loss, gradient, static_cast<float*>(scratch), threads);
        });
  }

 private:
  int64_t blank_;
  bool label_takes_frame_, normalized_;
};

REGISTER_KERNEL_BUILDER(Name("RtfAcceptorSoft").Device(DEVICE_CPU), AcceptorSoftOp);
REGISTER_KERNEL_BUILDER(Name("RtfAcceptorBest").Device(DEVICE_CPU), AcceptorBestOp);
REGISTER_KERNEL_BUILDER(Name("RtfTransducer").Device(DEVICE_CPU), TransducerOp);

#if RTF_CUDA
class AcceptorSoftGpuOp : public AcceptorSoftOp {
 public:
  using AcceptorSoftOp::AcceptorSoftOp;

 protected:
  Status run(OpKernelContext* context, const RtfScores& scores, const RtfAcceptors& acceptors, float* posteriors,
             float* total) const override {
    return run_on_gpu(context, rtf_acceptor_cuda_workspace(&scores, &acceptors), [&](void* workspace, void* stream) {
      return rtf_acceptor_soft_cuda_f32(&scores, &acceptors, posteriors, total, workspace, stream);
    });
  }
};

class AcceptorBestGpuOp : public AcceptorBestOp {
 public:
  using AcceptorBestOp::AcceptorBestOp;

 protected:
  Status run(OpKernelContext* context, const RtfScores& scores, const RtfAcceptors& acceptors, int32_t* path,
             float* total) const override {
    return run_on_gpu(context, rtf_acceptor_best_cuda_workspace(&scores, &acceptors),
                      [&](void* workspace, void* stream) {
                        return rtf_acceptor_best_cuda_f32(&scores, &acceptors, path, total, workspace, stream);
                      });
  }
};

class TransducerGpuOp : public TransducerOp {
 public:
  using TransducerOp::TransducerOp;

 protected:
  Status run(OpKernelContext* context, const RtfTransducer& transducer, float* loss, float* gradient) const override {
    return run_on_gpu(context, rtf_transducer_cuda_workspace(&transducer), [&](void* workspace, void* stream) {
      return rtf_transducer_cuda_f32(&transducer, loss, gradient, workspace, stream);
    });
  }
};

#define RTF_ACCEPTORS_ON_GPU(name) \
  Name(name).Device(DEVICE_GPU).HostMemory("lengths").HostMemory("edges").HostMemory("num_states")
REGISTER_KERNEL_BUILDER(RTF_ACCEPTORS_ON_GPU("RtfAcceptorSoft"), AcceptorSoftGpuOp);
REGISTER_KERNEL_BUILDER(RTF_ACCEPTORS_ON_GPU("RtfAcceptorBest"), AcceptorBestGpuOp);
REGISTER_KERNEL_BUILDER(
    Name("RtfTransducer").Device(DEVICE_GPU).HostMemory("lengths").HostMemory("labels").HostMemory("label_lengths"),
    TransducerGpuOp);
#endif

}  // namespace
}  // namespace rtf
