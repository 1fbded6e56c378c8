// Chunks as TensorFlow ops. The kernels are in chunk_cpu.cc and chunk_cuda.cu.
#include "../common/tf_op.h"
#include "chunk.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#endif

namespace rtf {
namespace {

REGISTER_OP("RtfChunk")
    .Attr("size: int >= 1")
    .Attr("step: int >= 1")
    .Attr("mean: bool")
    .Input("x: float")        // [T, B, F]
    .Output("chunks: float")  // [size, B * count, F]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle x;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &x));
      int64_t size;
      TF_RETURN_IF_ERROR(context->GetAttr("size", &size));
      context->set_output(0, context->MakeShape({context->MakeDim(size), context->UnknownDim(), context->Dim(x, 2)}));
      return OkStatus();
    });

REGISTER_OP("RtfUnchunk")
    .Attr("size: int >= 1")
    .Attr("step: int >= 1")
    .Attr("mean: bool")
    .Input("chunks: float")  // [size, B * count, F]
    .Input("frames: int32")  // T
    .Output("x: float")      // [T, B, F]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle chunks;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &chunks));
      context->set_output(0,
                          context->MakeShape({context->UnknownDim(), context->UnknownDim(), context->Dim(chunks, 2)}));
      return OkStatus();
    });

class ChunkBase : public OpKernel {
 public:
  explicit ChunkBase(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "size", &size_, "step", &step_, "mean", &mean_);
  }

 protected:
  // All sequences of a batch get as many chunks as the longest one needs.
  RtfChunks shape_for(int64_t frames, int64_t batch, int64_t width) const {
    const int64_t count = frames > size_ ? (frames - size_ + step_ - 1) / step_ + 1 : 1;
    return {frames, batch, width, size_, step_, count, mean_};
  }

  int64_t size_, step_;
  bool mean_;
};

class ChunkOp : public ChunkBase {
 public:
  using ChunkBase::ChunkBase;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    OP_REQUIRES(context, x.dims() == 3,
                InvalidArgument("chunk: the input has to be [time, batch, units], but is ", x.shape().DebugString()));
    const RtfChunks shape = shape_for(x.dim_size(0), x.dim_size(1), x.dim_size(2));
    Tensor* chunks;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({shape.size, shape.batch * shape.count, shape.width}), &chunks));
    OP_REQUIRES_OK(context, run(context, shape, floats(x), floats(chunks)));
  }

 protected:
  virtual Status run(OpKernelContext* context, const RtfChunks& shape, const float* x, float* chunks) const {
    const RtfThreads threads = tf_threads(context);
    rtf_chunk_f32(&shape, x, chunks, &threads);
    return OkStatus();
  }
};

class UnchunkOp : public ChunkBase {
 public:
  using ChunkBase::ChunkBase;

  void Compute(OpKernelContext* context) override {
    const Tensor &chunks = context->input(0), &frames = context->input(1);
    OP_REQUIRES(context, frames.dims() == 0 && frames.flat<int32_t>()(0) >= 0,
                InvalidArgument("unchunk: frames has to be one number, 0 or more"));
    RtfChunks shape = shape_for(frames.flat<int32_t>()(0), 0, 0);
    OP_REQUIRES(context, chunks.dims() == 3 && chunks.dim_size(0) == size_ && chunks.dim_size(1) % shape.count == 0,
                InvalidArgument("unchunk: for ", shape.frames, " frames the input has to be [", size_, ", batch * ",
                                shape.count, ", units], but is ", chunks.shape().DebugString()));
    shape.batch = chunks.dim_size(1) / shape.count;
    shape.width = chunks.dim_size(2);
    Tensor* x;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({shape.frames, shape.batch, shape.width}), &x));
    OP_REQUIRES_OK(context, run(context, shape, floats(chunks), floats(x)));
  }

 protected:
  virtual Status run(OpKernelContext* context, const RtfChunks& shape, const float* chunks, float* x) const {
    const RtfThreads threads = tf_threads(context);
    rtf_unchunk_f32(&shape, chunks, x, &threads);
    return OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfChunk").Device(DEVICE_CPU), ChunkOp);
REGISTER_KERNEL_BUILDER(Name("RtfUnchunk").Device(DEVICE_CPU), UnchunkOp);

#if RTF_CUDA
class ChunkGpuOp : public ChunkOp {
 public:
  using ChunkOp::ChunkOp;

 protected:
  Status run(OpKernelContext* context, const RtfChunks& shape, const float* x, float* chunks) const override {
    return gpu_status("chunk", rtf_chunk_cuda_f32(&shape, x, chunks, gpu_stream(context)));
  }
};

class UnchunkGpuOp : public UnchunkOp {
 public:
  using UnchunkOp::UnchunkOp;

 protected:
  Status run(OpKernelContext* context, const RtfChunks& shape, const float* chunks, float* x) const override {
    return gpu_status("unchunk", rtf_unchunk_cuda_f32(&shape, chunks, x, gpu_stream(context)));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfChunk").Device(DEVICE_GPU), ChunkGpuOp);
REGISTER_KERNEL_BUILDER(Name("RtfUnchunk").Device(DEVICE_GPU).HostMemory("frames"), UnchunkGpuOp);
#endif

}  // namespace
}  // namespace rtf
