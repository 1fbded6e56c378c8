// Attention to frames that are stored once per sequence as a TensorFlow op. The kernels are in once_cpu.cc and
// beam_attention_cuda.cu.
#include "../common/tf_op.h"
#include "../common/tf_quick_threads.h"
#include "once.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#include "beam_attention_cuda.h"
#endif

namespace rtf {
namespace {

REGISTER_OP("RtfOnceAttention")
    .Attr("scale: float")
    .Attr("has_lengths: bool")
    .Input("queries: float")  // [B * beam, heads, size]
    .Input("keys: float")     // [B, frames, heads, size]
    .Input("values: float")   // [B, frames, heads, value]
    .Input("lengths: int32")  // [B * beam], or [0] without
    .Output("y: float")       // [B * beam, heads, value]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle queries, values;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &queries));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 4, &values));
      context->set_output(
          0, context->MakeShape({context->Dim(queries, 0), context->Dim(queries, 1), context->Dim(values, 3)}));
      return OkStatus();
    });

class OnceAttentionOp : public OpKernel {
 public:
  explicit OnceAttentionOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "scale", &scale_, "has_lengths", &has_lengths_);
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &queries = context->input(0), &keys = context->input(1), &values = context->input(2);
    const Tensor& lengths = context->input(3);
    OP_REQUIRES(context,
                queries.dims() == 3 && keys.dims() == 4 && values.dims() == 4 &&
                    queries.dim_size(1) == keys.dim_size(2) && queries.dim_size(2) == keys.dim_size(3) &&
                    values.dim_size(0) == keys.dim_size(0) && values.dim_size(1) == keys.dim_size(1) &&
                    values.dim_size(2) == keys.dim_size(2) &&
                    (keys.dim_size(0) ? queries.dim_size(0) % keys.dim_size(0) : queries.dim_size(0)) == 0,
                InvalidArgument("attention once per sequence: queries [batch * beam, heads, size] ",
                                queries.shape().DebugString(), " do not fit keys and values [batch, frames, heads, ",
                                "size] ", keys.shape().DebugString(), " and ", values.shape().DebugString()));
    OP_REQUIRES(context, lengths.NumElements() == (has_lengths_ ? queries.dim_size(0) : 0),
                InvalidArgument("attention once per sequence: ", lengths.NumElements(), " lengths for ",
                                queries.dim_size(0), " rows"));
    const int64_t batch = keys.dim_size(0);
    const RtfOnce shape = {batch, batch ? queries.dim_size(0) / batch : 0, keys.dim_size(1), keys.dim_size(2),
                           keys.dim_size(3)};
    Tensor* y;
    OP_REQUIRES_OK(
        context, context->allocate_output(0, TensorShape({queries.dim_size(0), shape.heads, values.dim_size(3)}), &y));
    OP_REQUIRES_OK(context, run(context, shape, values.dim_size(3), floats(queries), floats(keys), floats(values),
                                has_lengths_ ? lengths.flat<int32_t>().data() : nullptr, floats(y)));
  }

 protected:
  virtual Status run(OpKernelContext* context, const RtfOnce& shape, int64_t value_size, const float* queries,
                     const float* keys, const float* values, const int32_t* lengths, float* y) const {
    const RtfThreads threads = tf_quick_threads(context);
    rtf_once_attention_f32(&shape, value_size, scale_, queries, keys, values, lengths, y, &threads);
    return OkStatus();
  }

  float scale_;

 private:
  bool has_lengths_;
};

REGISTER_KERNEL_BUILDER(Name("RtfOnceAttention").Device(DEVICE_CPU), OnceAttentionOp);

#if RTF_CUDA
class OnceAttentionGpuOp : public OnceAttentionOp {
 public:
  using OnceAttentionOp::OnceAttentionOp;

 protected:
  Status run(OpKernelContext* context, const RtfOnce& shape, int64_t value_size, const float* queries,
             const float* keys, const float* values, const int32_t* lengths, float* y) const override {
    return gpu_status("attention once per sequence",
                      rtf_once_attention_cuda_f32(&shape, value_size, scale_, queries, keys, values, lengths, y,
                                                  gpu_stream(context)));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfOnceAttention").Device(DEVICE_GPU), OnceAttentionGpuOp);
#endif

}  // namespace
}  // namespace rtf
