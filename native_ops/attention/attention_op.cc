// Attention as TensorFlow ops. The kernels are in attention_cpu.cc and attention_cuda.cu, those of the gradient in
// attention_grad_cpu.cc and attention_grad_cuda.cu.
#include "../common/tf_op.h"
#include "attention.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#include "attention_cuda.h"
#endif

namespace rtf {
namespace {

// The inputs of both ops. parts: queries, keys and values [batch, time, heads, size], or one array with all three
// behind each other in the last axis.
#define RTF_ATTENTION_INPUTS                                                       \
  Attr("n: int >= 1")                                                              \
      .Attr("key_size: int >= 1")                                                  \
      .Attr("causal: bool")                                                        \
      .Attr("scale: float")                                                        \
      .Attr("dropout: float")                                                      \
      .Attr("rounded: bool = false")                                               \
      .Input("parts: n * float")                                                   \
      .Input("lengths: int32")  /* [batch], or [0] */                              \
      .Input("table: float")    /* [2 clipping + 1, key_size], or [0, key_size] */ \
      .Input("key: uint64")     /* [1]; of the generator */                        \
      .Input("counter: uint64") /* [2] */

REGISTER_OP("RtfAttention")
    .RTF_ATTENTION_INPUTS
    .Output("y: float")         // [batch, queries, heads, value_size]
    .Output("log_sums: float")  // [batch, heads, queries]
    .SetShapeFn([](InferenceContext* context) {
      int n, key_size;
      TF_RETURN_IF_ERROR(context->GetAttr("n", &n));
      TF_RETURN_IF_ERROR(context->GetAttr("key_size", &key_size));
      ShapeHandle q, v, y;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 4, &q));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(n - 1), 4, &v));
      DimensionHandle size = context->Dim(v, 3);
      if (n == 1) TF_RETURN_IF_ERROR(context->Subtract(size, 2 * key_size, &size));
      TF_RETURN_IF_ERROR(context->ReplaceDim(q, 3, size, &y));
      context->set_output(0, y);
      context->set_output(1, context->MakeShape({context->Dim(q, 0), context->Dim(q, 2), context->Dim(q, 1)}));
      return OkStatus();
    });

REGISTER_OP("RtfAttentionGrad")
    .RTF_ATTENTION_INPUTS.Input("y: float")
    .Input("log_sums: float")
    .Input("dy: float")
    .Output("d_parts: n * float")
    .Output("d_tables: float")  // [batch, heads, 2 clipping + 1, key_size]
    .SetShapeFn([](InferenceContext* context) {
      int n;
      TF_RETURN_IF_ERROR(context->GetAttr("n", &n));
      for (int i = 0; i < n; ++i) context->set_output(i, context->input(i));
      context->set_output(n, context->UnknownShapeOfRank(4));
      return OkStatus();
    });

class AttentionBase : public OpKernel {
 public:
  explicit AttentionBase(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "n", &n_);
    OP_REQUIRES(construction, n_ == 1 || n_ == 3, InvalidArgument("attention: n has to be 1 or 3, but is ", n_));
    read_attrs(construction, "key_size", &key_size_, "causal", &causal_, "scale", &scale_, "dropout", &dropout_,
               "rounded", &rounded_);
    OP_REQUIRES(construction, dropout_ >= 0 && dropout_ < 1,
                InvalidArgument("attention: dropout has to be at least 0 and less than 1, but is ", dropout_));
  }

 protected:
  // Checks the inputs. On a GPU lengths are in its memory and can't be looked at.
  Status shape_of(OpKernelContext* context, bool host, RtfAttention* shape) const {
    const Tensor &q = context->input(0), &k = context->input(n_ == 1 ? 0 : 1), &v = context->input(n_ - 1);
    const Tensor &lengths = context->input(n_), &table = context->input(n_ + 1), &key = context->input(n_ + 2);
    const Tensor& counter = context->input(n_ + 3);
    for (const Tensor* part : {&q, &k, &v})
      if (part->dims() != 4 || part->dim_size(0) != q.dim_size(0) || part->dim_size(2) != q.dim_size(2))
        return InvalidArgument("attention: every part has to be [batch, time, heads, size], but they are ",
                               q.shape().DebugString(), ", ", k.shape().DebugString(), ", ", v.shape().DebugString());
    const int64_t before = n_ == 1 ? 2 * key_size_ : 0;
    if (v.dim_size(3) <= before || v.dim_size(1) != k.dim_size(1) ||
        (n_ == 3 && (q.dim_size(3) != key_size_ || k.dim_size(3) != key_size_)))
      return InvalidArgument("attention: the sizes do not fit: ", q.shape().DebugString(), ", ",
                             k.shape().DebugString(), ", ", v.shape().DebugString(), ", keys of ", key_size_);
    if (causal_ && q.dim_size(1) != k.dim_size(1))
      return InvalidArgument("attention: causal, but there are ", q.dim_size(1), " queries and ", k.dim_size(1),
                             " keys");
    if (lengths.dims() != 1 || (lengths.dim_size(0) != 0 && lengths.dim_size(0) != q.dim_size(0)))
      return InvalidArgument("attention: lengths has to be [batch] or [0], but is ", lengths.shape().DebugString());
    if (table.dims() != 2 || table.dim_size(1) != key_size_ || (table.dim_size(0) && table.dim_size(0) % 2 == 0))
      return InvalidArgument("attention: the table has to be [2 * clipping + 1, ", key_size_, "], but is ",
                             table.shape().DebugString());
    if (key.NumElements() != 1 || counter.NumElements() != 2)
      return InvalidArgument("attention: a key of 1 number and a counter of 2 are needed");
    shape->batch = q.dim_size(0);
    shape->queries = q.dim_size(1);
    shape->heads = q.dim_size(2);
    shape->keys = k.dim_size(1);
    shape->key_size = key_size_;
    shape->value_size = v.dim_size(3) - before;
    shape->lengths = lengths.dim_size(0) ? lengths.flat<int32_t>().data() : nullptr;
    for (int64_t b = 0; host && shape->lengths && b < shape->batch; ++b)
      if (shape->lengths[b] < 0 || shape->lengths[b] > shape->keys)
        return InvalidArgument("attention: a length is ", shape->lengths[b], ", with ", shape->keys, " keys");
    shape->causal = causal_;
    shape->scale = scale_;
    shape->clipping = table.dim_size(0) / 2;
    shape->table = table.dim_size(0) ? floats(table) : nullptr;
    shape->rounded = rounded_;
    shape->dropout = dropout_;
    shape->seed_key = key.flat<uint64_t>()(0);
    for (int i = 0; i < 2; ++i) shape->seed_counter[i] = counter.flat<uint64_t>()(i);
    return OkStatus();
  }

  // The vectors of a dense array [batch, time, heads, size], from an entry of the last axis on.
  static RtfVectors vectors(const Tensor& x, int64_t first = 0) {
    const int64_t head = x.dim_size(3), time = head * x.dim_size(2);
    return {const_cast<float*>(floats(x)) + first, time * x.dim_size(1), time, head};
  }

  // Queries, keys or values (0, 1, 2) in the parts from an input or output on.
  template <typename Parts>
  RtfVectors part(const Parts& parts, int which) const {
    return n_ == 1 ? vectors(*parts(0), which * key_size_) : vectors(*parts(which));
  }

  int n_;
  int64_t key_size_;
  bool causal_, rounded_;
  float scale_, dropout_;
};

// What both passes have, and the results of one.
struct Parts {
  RtfVectors q, k, v, y;
};

struct Forward : Parts {
  float* log_sums;
};

struct Backward : Parts {
  const float* log_sums;
  RtfVectors dy, dq, dk, dv;
  float* d_tables;
};

// Runs the CPU kernels on TensorFlow's threads.
struct Cpu {
  static constexpr bool kHost = true;

  static Status run(OpKernelContext* context, const RtfAttention& s, const Forward& x) {
    const RtfThreads threads = tf_threads(context);
    Tensor memory;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_attention_forward_scratch(&s, threads.n_threads), &memory));
    rtf_attention_f32(&s, &x.q, &x.k, &x.v, &x.y, x.log_sums, floats(&memory), &threads);
    return OkStatus();
  }

  static Status run(OpKernelContext* context, const RtfAttention& s, const Backward& x) {
    const RtfThreads threads = tf_threads(context);
    Tensor memory;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_attention_grad_scratch(&s, threads.n_threads), &memory));
    rtf_attention_grad_f32(&s, &x.q, &x.k, &x.v, &x.y, x.log_sums, &x.dy, &x.dq, &x.dk, &x.dv, x.d_tables,
                           floats(&memory), &threads);
    return OkStatus();
  }
};

#if RTF_CUDA
// Runs the GPU kernels on TensorFlow's stream.
struct Gpu {
  static constexpr bool kHost = false;

  static Status run(OpKernelContext* context, const RtfAttention& s, const Forward& x) {
    Tensor memory;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_attention_forward_cuda_scratch(&s), &memory));
    return gpu_status("attention", rtf_attention_cuda_f32(&s, &x.q, &x.k, &x.v, &x.y, x.log_sums, floats(&memory),
                                                          gpu_numbers(context->input(0)), gpu_stream(context)));
  }

  static Status run(OpKernelContext* context, const RtfAttention& s, const Backward& x) {
    Tensor memory;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_attention_grad_cuda_scratch(&s), &memory));
    return gpu_status("attention", rtf_attention_grad_cuda_f32(&s, &x.q, &x.k, &x.v, &x.y, x.log_sums, &x.dy, &x.dq,
                                                               &x.dk, &x.dv, x.d_tables, floats(&memory),
                                                               gpu_numbers(context->input(0)), gpu_stream(context)));
  }
};
#endif

template <class Device>
class AttentionOp : public AttentionBase {
 public:
  using AttentionBase::AttentionBase;

  void Compute(OpKernelContext* context) override {
    RtfAttention s;
    OP_REQUIRES_OK(context, shape_of(context, Device::kHost, &s));
    Tensor *y, *log_sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({s.batch, s.queries, s.heads, s.value_size}), &y));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({s.batch, s.heads, s.queries}), &log_sums));
    const auto inputs = [&](int i) { return &context->input(i); };
    const Forward pass{{part(inputs, 0), part(inputs, 1), part(inputs, 2), vectors(*y)}, floats(log_sums)};
    OP_REQUIRES_OK(context, Device::run(context, s, pass));
  }
};

template <class Device>
class AttentionGradOp : public AttentionBase {
 public:
  using AttentionBase::AttentionBase;

  void Compute(OpKernelContext* context) override {
    RtfAttention s;
    OP_REQUIRES_OK(context, shape_of(context, Device::kHost, &s));
    const Tensor &y = context->input(n_ + 4), &log_sums = context->input(n_ + 5), &dy = context->input(n_ + 6);
    const TensorShape expected({s.batch, s.queries, s.heads, s.value_size});
    OP_REQUIRES(context,
                y.shape() == expected && dy.shape() == expected &&
                    log_sums.shape() == TensorShape({s.batch, s.heads, s.queries}),
                InvalidArgument("attention: y and its gradient have to be ", expected.DebugString(), ", but are ",
                                y.shape().DebugString(), " and ", dy.shape().DebugString()));
    Tensor *gradients[3], *d_tables;
    for (int i = 0; i < n_; ++i)
      OP_REQUIRES_OK(context, context->allocate_output(i, context->input(i).shape(), &gradients[i]));
    const int64_t distances = s.table ? 2 * s.clipping + 1 : 0;
    OP_REQUIRES_OK(context,
                   context->allocate_output(n_, TensorShape({s.batch, s.heads, distances, s.key_size}), &d_tables));
    const auto inputs = [&](int i) { return &context->input(i); };
    const auto outputs = [&](int i) { return gradients[i]; };
    const Backward pass{{part(inputs, 0), part(inputs, 1), part(inputs, 2), vectors(y)},
                        floats(log_sums),
                        vectors(dy),
                        part(outputs, 0),
                        part(outputs, 1),
                        part(outputs, 2),
                        floats(d_tables)};
    OP_REQUIRES_OK(context, Device::run(context, s, pass));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfAttention").Device(DEVICE_CPU), AttentionOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfAttentionGrad").Device(DEVICE_CPU), AttentionGradOp<Cpu>);
#if RTF_CUDA
REGISTER_KERNEL_BUILDER(Name("RtfAttention").Device(DEVICE_GPU).HostMemory("key").HostMemory("counter"),
                        AttentionOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfAttentionGrad").Device(DEVICE_GPU).HostMemory("key").HostMemory("counter"),
                        AttentionGradOp<Gpu>);
#endif

}  // namespace
}  // namespace rtf
