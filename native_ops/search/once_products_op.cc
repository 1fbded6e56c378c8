// Products with frames that are stored once per sequence as TensorFlow ops. The kernels are in once_products_cpu.cc.
#include "../common/tf_op.h"
#include "../common/tf_quick_threads.h"
#include "once_products.h"

namespace rtf {
namespace {

REGISTER_OP("RtfOnceEnergies")
    .Input("queries: float")  // [B * beam, heads, size]
    .Input("keys: float")     // [B, frames, heads, size]
    .Output("y: float")       // [B * beam, heads, frames]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle queries, keys;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &queries));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 4, &keys));
      context->set_output(
          0, context->MakeShape({context->Dim(queries, 0), context->Dim(queries, 1), context->Dim(keys, 1)}));
      return OkStatus();
    });

REGISTER_OP("RtfOnceSums")
    .Input("weights: float")  // [B * beam, heads, frames]
    .Input("values: float")   // [B, frames, heads, size]
    .Output("y: float")       // [B * beam, heads, size]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle weights, values;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &weights));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 4, &values));
      context->set_output(
          0, context->MakeShape({context->Dim(weights, 0), context->Dim(weights, 1), context->Dim(values, 3)}));
      return OkStatus();
    });

// kSums: the last axis of the first input has the frames, that of the result the units of a head; else the reverse.
template <bool kSums>
class OnceOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &once = context->input(1);
    OP_REQUIRES(context,
                x.dims() == 3 && once.dims() == 4 && x.dim_size(1) == once.dim_size(2) &&
                    x.dim_size(2) == once.dim_size(kSums ? 1 : 3) &&
                    (once.dim_size(0) ? x.dim_size(0) % once.dim_size(0) : x.dim_size(0)) == 0,
                InvalidArgument("once per sequence: [batch * beam, heads, ", kSums ? "frames" : "size",
                                "] does not fit [batch, frames, heads, size]: ", x.shape().DebugString(), " and ",
                                once.shape().DebugString()));
    const int64_t batch = once.dim_size(0);
    const RtfOnce shape = {batch, batch ? x.dim_size(0) / batch : 0, once.dim_size(1), once.dim_size(2),
                           once.dim_size(3)};
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({x.dim_size(0), shape.heads, kSums ? shape.size : shape.frames}), &y));
    const RtfThreads threads = tf_quick_threads(context);
    const auto run = kSums ? rtf_once_sums_f32 : rtf_once_energies_f32;
    run(&shape, floats(x), floats(once), floats(y), &threads);
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfOnceEnergies").Device(DEVICE_CPU), OnceOp<false>);
REGISTER_KERNEL_BUILDER(Name("RtfOnceSums").Device(DEVICE_CPU), OnceOp<true>);

}  // namespace
}  // namespace rtf
