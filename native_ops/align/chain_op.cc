// Alignments by chains of states, and CTC, as TensorFlow ops. The kernels are in chain_cpu.cc, chain_cuda.cu and
// viterbi_cuda.cu. On a GPU all integers and flags stay in host memory, where they are checked.
#include "op_inputs.h"

namespace rtf {
namespace {

REGISTER_OP("RtfChainSoft")
    .Attr("optional_ends: bool")
    .Input("scores: float")       // [T, B, F]
    .Input("lengths: int32")      // [B]
    .Input("classes: int32")      // [B, S]
    .Input("num_states: int32")   // [B]
    .Input("loop: bool")          // [B, S]
    .Input("skip: bool")          // [B, S]
    .Output("posteriors: float")  // [T, B, F]
    .Output("total: float")       // [B]
    .SetShapeFn(posteriors_and_total);

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
    .SetShapeFn(path_and_total);

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
    .SetShapeFn(loss_and_gradient);

class ChainOp : public OpKernel {
 public:
  explicit ChainOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "optional_ends", &optional_ends_);
  }

 protected:
  // Checks the inputs and allocates the totals.
  Status prepare(OpKernelContext* context, RtfScores* scores, RtfChains* chains, Tensor** total) const {
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
    *chains = RtfChains{
        states,        classes.flat<int32_t>().data(), counts, flags(context->input(4)), flags(context->input(5)),
        optional_ends_};
    return context->allocate_output(1, TensorShape({scores->batch}), total);
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
    Tensor *posteriors, *total;
    OP_REQUIRES_OK(context, prepare(context, &scores, &chains, &total));
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &posteriors));
    OP_REQUIRES_OK(context, run(context, scores, chains, floats(posteriors), floats(total)));
  }

 protected:
  virtual Status run(OpKernelContext* context, const RtfScores& scores, const RtfChains& chains, float* posteriors,
                     float* total) const {
    return run_on_cpu(
        context, [&](int n_threads) { return rtf_chain_scratch_size(scores.frames, chains.states, n_threads); },
        [&](void* scratch, const RtfThreads* threads) {
          rtf_chain_soft_f32(&scores, &chains, posteriors, total, static_cast<float*>(scratch), threads);
        });
  }
};

class ChainBestOp : public ChainOp {
 public:
  using ChainOp::ChainOp;

  void Compute(OpKernelContext* context) override {
    RtfScores scores;
    RtfChains chains;
    Tensor *path, *total;
    OP_REQUIRES_OK(context, prepare(context, &scores, &chains, &total));
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({scores.frames, scores.batch}), &path));
    OP_REQUIRES_OK(context, run(context, scores, chains, path->flat<int32_t>().data(), floats(total)));
  }

 protected:
  virtual Status run(OpKernelContext* context, const RtfScores& scores, const RtfChains& chains, int32_t* path,
                     float* total) const {
    return run_on_cpu(
        context, [&](int n_threads) { return rtf_chain_scratch_size(scores.frames, chains.states, n_threads); },
        [&](void* scratch, const RtfThreads* threads) {
          rtf_chain_best_f32(&scores, &chains, path, total, static_cast<float*>(scratch), threads);
        });
  }
};

class CtcOp : public OpKernel {
 public:
  explicit CtcOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "blank", &blank_, "label_loop", &label_loop_, "normalized", &normalized_,
               "softmax_without_alignment", &softmax_);
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
    const RtfCtc ctc = {labels.dim_size(1),
                        labels.flat<int32_t>().data(),
                        counts,
                        static_cast<int32_t>(blank_),
                        label_loop_,
                        normalized_,
                        softmax_};
    Tensor *loss, *gradient;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({scores.batch}), &loss));
    OP_REQUIRES_OK(context, context->allocate_output(1, context->input(0).shape(), &gradient));
    OP_REQUIRES_OK(context, run(context, scores, ctc, floats(loss), floats(gradient)));
  }

 protected:
  virtual Status run(OpKernelContext* context, const RtfScores& scores, const RtfCtc& ctc, float* loss,
                     float* gradient) const {
    return run_on_cpu(
        context,
        [&](int n_threads) { return rtf_chain_scratch_size(scores.frames, 2 * ctc.max_labels + 1, n_threads); },
        [&](void* scratch, const RtfThreads* threads) {
          rtf_ctc_f32(&scores, &ctc, loss, gradient, static_cast<float*>(scratch), threads);
        });
  }

 private:
  int64_t blank_;
  bool label_loop_, normalized_, softmax_;
};

REGISTER_KERNEL_BUILDER(Name("RtfChainSoft").Device(DEVICE_CPU), ChainSoftOp);
REGISTER_KERNEL_BUILDER(Name("RtfChainBest").Device(DEVICE_CPU), ChainBestOp);
REGISTER_KERNEL_BUILDER(Name("RtfCtc").Device(DEVICE_CPU), CtcOp);

#if RTF_CUDA
class ChainSoftGpuOp : public ChainSoftOp {
 public:
  using ChainSoftOp::ChainSoftOp;

 protected:
  Status run(OpKernelContext* context, const RtfScores& scores, const RtfChains& chains, float* posteriors,
             float* total) const override {
    return run_on_gpu(context, rtf_chain_cuda_workspace(&scores, chains.states), [&](void* workspace, void* stream) {
      return rtf_chain_soft_cuda_f32(&scores, &chains, posteriors, total, workspace, stream);
    });
  }
};

class ChainBestGpuOp : public ChainBestOp {
 public:
  using ChainBestOp::ChainBestOp;

 protected:
  Status run(OpKernelContext* context, const RtfScores& scores, const RtfChains& chains, int32_t* path,
             float* total) const override {
    return run_on_gpu(context, rtf_chain_best_cuda_workspace(&scores, chains.states),
                      [&](void* workspace, void* stream) {
                        return rtf_chain_best_cuda_f32(&scores, &chains, path, total, workspace, stream);
                      });
  }
};

class CtcGpuOp : public CtcOp {
 public:
  using CtcOp::CtcOp;

 protected:
  Status run(OpKernelContext* context, const RtfScores& scores, const RtfCtc& ctc, float* loss,
             float* gradient) const override {
    const int64_t bytes = rtf_chain_cuda_workspace(&scores, 2 * ctc.max_labels + 1);
    return run_on_gpu(context, bytes, [&](void* workspace, void* stream) {
      return rtf_ctc_cuda_f32(&scores, &ctc, loss, gradient, workspace, stream);
    });
  }
};

#define RTF_CHAINS_ON_GPU(name) \
  Name(name)                    \
      .Device(DEVICE_GPU)       \
      .HostMemory("lengths")    \
      .HostMemory("classes")    \
      .HostMemory("num_states") \
      .HostMemory("loop")       \
      .HostMemory("skip")
REGISTER_KERNEL_BUILDER(RTF_CHAINS_ON_GPU("RtfChainSoft"), ChainSoftGpuOp);
REGISTER_KERNEL_BUILDER(RTF_CHAINS_ON_GPU("RtfChainBest"), ChainBestGpuOp);
REGISTER_KERNEL_BUILDER(
    Name("RtfCtc").Device(DEVICE_GPU).HostMemory("lengths").HostMemory("labels").HostMemory("label_lengths"), CtcGpuOp);
#endif

}  // namespace
}  // namespace rtf
