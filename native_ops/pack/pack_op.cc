// Packed frames as TensorFlow ops. The kernels are in pack_cpu.cc.
//
// The ops decide by the lengths whether to pack: batches with less padding than a share of their frames only change
// their shape to [1, batch * frames, width], without a copy.
#include "../common/tf_op.h"
#include "pack.h"

namespace rtf {
namespace {

REGISTER_OP("RtfPack")
    .Attr("least_share: float")
    .Input("x: float")        // [batch, frames, width]
    .Input("lengths: int32")  // [batch]
    .Output("y: float")       // [1, packed frames, width]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &x));
      const DimensionHandle frames = context->UnknownDim();
      context->set_output(0, context->MakeShape({context->MakeDim(1), frames, context->Dim(x, 2)}));
      return OkStatus();
    });

REGISTER_OP("RtfUnpack")
    .Attr("least_share: float")
    .Input("y: float")        // [1, packed frames, width]
    .Input("lengths: int32")  // [batch]
    .Input("frames: int32")   // scalar
    .Output("x: float")       // [batch, frames, width]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle y, lengths;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &y));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &lengths));
      context->set_output(0, context->MakeShape({context->Dim(lengths, 0), context->UnknownDim(), context->Dim(y, 2)}));
      return OkStatus();
    });

REGISTER_OP("RtfPackedRows")
    .Attr("least_share: float")
    .Input("lengths: int32")  // [batch]
    .Input("frames: int32")   // scalar
    .Output("rows: int64")    // [packed frames]: where they are in the batch, counted in [batch, frames]
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      return OkStatus();
    });

class PackBase : public OpKernel {
 public:
  explicit PackBase(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "least_share", &least_share_);
  }

 protected:
  static Status sizes_of(const Tensor& lengths, int64_t frames, int64_t width, RtfPadded* shape) {
    if (lengths.dims() != 1)
      return InvalidArgument("pack: the lengths have to be [batch], but are ", lengths.shape().DebugString());
    if (frames < 0) return InvalidArgument("pack: there are ", frames, " frames");
    *shape = {lengths.dim_size(0), frames, width, lengths.flat<int32_t>().data()};
    return OkStatus();
  }

  static Status scalar(const Tensor& x, int64_t* value) {
    if (x.NumElements() != 1) return InvalidArgument("pack: the number of frames has to be a scalar");
    *value = x.flat<int32_t>()(0);
    return OkStatus();
  }

  bool packs(const RtfPadded& shape, int64_t valid) const {
    const int64_t all = shape.batch * shape.frames;
    return valid < all && static_cast<double>(all - valid) >= static_cast<double>(least_share_) * all;
  }

 private:
  float least_share_;
};

class PackOp : public PackBase {
 public:
  using PackBase::PackBase;

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &lengths = context->input(1);
    OP_REQUIRES(context, x.dims() == 3 && lengths.NumElements() == x.dim_size(0),
                InvalidArgument("pack: the input has to be [batch, frames, width], but is ", x.shape().DebugString(),
                                ", with lengths ", lengths.shape().DebugString()));
    RtfPadded shape;
    OP_REQUIRES_OK(context, sizes_of(lengths, x.dim_size(1), x.dim_size(2), &shape));
    const int64_t valid = rtf_valid_frames(&shape);
    if (!packs(shape, valid)) {
      Tensor y;
      OP_REQUIRES(context, y.CopyFrom(x, TensorShape({1, shape.batch * shape.frames, shape.width})),
                  InvalidArgument("pack: the shapes do not fit"));
      context->set_output(0, y);
      return;
    }
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({1, valid, shape.width}), &y));
    const RtfThreads threads = tf_threads(context);
    rtf_pack_f32(&shape, floats(x), floats(y), &threads);
  }
};

class UnpackOp : public PackBase {
 public:
  using PackBase::PackBase;

  void Compute(OpKernelContext* context) override {
    const Tensor &y = context->input(0), &lengths = context->input(1);
    int64_t frames;
    OP_REQUIRES_OK(context, scalar(context->input(2), &frames));
    OP_REQUIRES(context, y.dims() == 3 && y.dim_size(0) == 1,
                InvalidArgument("unpack: the input has to be [1, frames, width], but is ", y.shape().DebugString()));
    RtfPadded shape;
    OP_REQUIRES_OK(context, sizes_of(lengths, frames, y.dim_size(2), &shape));
    const int64_t valid = rtf_valid_frames(&shape);
    const bool packed = packs(shape, valid);
    const int64_t expected = packed ? valid : shape.batch * shape.frames;
    OP_REQUIRES(context, y.dim_size(1) == expected,
                InvalidArgument("unpack: there are ", y.dim_size(1), " frames, but ", expected, " are needed"));
    const TensorShape padded({shape.batch, shape.frames, shape.width});
    if (!packed) {
      Tensor x;
      OP_REQUIRES(context, x.CopyFrom(y, padded), InvalidArgument("unpack: the shapes do not fit"));
      context->set_output(0, x);
      return;
    }
    Tensor* x;
    OP_REQUIRES_OK(context, context->allocate_output(0, padded, &x));
    const RtfThreads threads = tf_threads(context);
    rtf_unpack_f32(&shape, floats(y), floats(x), &threads);
  }
};

class PackedRowsOp : public PackBase {
 public:
  using PackBase::PackBase;

  void Compute(OpKernelContext* context) override {
    int64_t frames;
    OP_REQUIRES_OK(context, scalar(context->input(1), &frames));
    RtfPadded shape;
    OP_REQUIRES_OK(context, sizes_of(context->input(0), frames, 1, &shape));
    const int64_t valid = rtf_valid_frames(&shape);
    const bool packed = packs(shape, valid);
    const int64_t count = packed ? valid : shape.batch * shape.frames;
    Tensor* rows;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({count}), &rows));
    int64_t* to = rows->flat<int64_t>().data();
    if (packed)
      rtf_packed_rows(&shape, to);
    else
      for (int64_t i = 0; i < count; ++i) to[i] = i;
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfPack").Device(DEVICE_CPU), PackOp);
REGISTER_KERNEL_BUILDER(Name("RtfUnpack").Device(DEVICE_CPU), UnpackOp);
REGISTER_KERNEL_BUILDER(Name("RtfPackedRows").Device(DEVICE_CPU), PackedRowsOp);

}  // namespace
}  // namespace rtf
