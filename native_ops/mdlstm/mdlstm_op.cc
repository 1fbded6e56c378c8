// The MDLSTM as TensorFlow ops: shapes, memory, and the threads or the stream. The kernels are in mdlstm_cpu.cc and
// mdlstm_cuda.cu.
#include <algorithm>
#include <vector>

#include "../common/tf_op.h"
#include "mdlstm.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#include "mdlstm_cuda.h"
#endif

namespace rtf {
namespace {

// All lists have one entry per direction, D in total. T is float on CPU. Heights and widths are in host memory. If
// rounded, the factors of products with the recurrent weights are, to bfloat16, in kernels for CPUs that can.
REGISTER_OP("RtfMdLstm")
    .Attr("D: int >= 1")
    .Attr("flip_rows: list(bool)")
    .Attr("flip_columns: list(bool)")
    .Attr("stable: bool")
    .Attr("rounded: bool = false")
    .Attr("T: {float, bfloat16, half} = DT_FLOAT")
    .Input("z: D * T")        // [B, Y, X, 5H]: W x + b
    .Input("r: D * T")        // [2H, 5H]
    .Input("heights: int32")  // [B]
    .Input("widths: int32")   // [B]
    .Output("h: D * T")       // [B, Y, X, H]
    .Output("c: D * T")       // [B, Y, X, H]
    .Output("gates: D * T")   // [B, Y, X, 5H]
    .SetShapeFn([](InferenceContext* context) {
      int count;
      TF_RETURN_IF_ERROR(context->GetAttr("D", &count));
      for (int k = 0; k < count; ++k) {
        ShapeHandle z, r, h;
        DimensionHandle units;
        TF_RETURN_IF_ERROR(context->WithRank(context->input(k), 4, &z));
        TF_RETURN_IF_ERROR(context->WithRank(context->input(count + k), 2, &r));
        TF_RETURN_IF_ERROR(context->Divide(context->Dim(r, 0), 2, true, &units));
        TF_RETURN_IF_ERROR(context->ReplaceDim(z, 3, units, &h));
        context->set_output(k, h);
        context->set_output(count + k, h);
        context->set_output(2 * count + k, z);
      }
      return OkStatus();
    });

REGISTER_OP("RtfMdLstmGrad")
    .Attr("D: int >= 1")
    .Attr("flip_rows: list(bool)")
    .Attr("flip_columns: list(bool)")
    .Attr("stable: bool")
    .Attr("rounded: bool = false")
    .Attr("T: {float, bfloat16, half} = DT_FLOAT")
    .Input("gates: D * T")
    .Input("r: D * T")
    .Input("heights: int32")
    .Input("widths: int32")
    .Input("h: D * T")
    .Input("c: D * T")
    .Input("dh: D * T")
    .Output("dz: D * T")      // [B, Y, X, 5H]
    .Output("before: D * T")  // [B, Y, X, 2H]
    .SetShapeFn([](InferenceContext* context) {
      int count;
      TF_RETURN_IF_ERROR(context->GetAttr("D", &count));
      for (int k = 0; k < count; ++k) {
        ShapeHandle before;
        const DimensionHandle width = context->Dim(context->input(count + k), 0);
        TF_RETURN_IF_ERROR(context->ReplaceDim(context->input(k), 3, width, &before));
        context->set_output(k, context->input(k));
        context->set_output(count + k, before);
      }
      return OkStatus();
    });

Status check_sizes(const char* what, const Tensor& sizes, int64_t batch, int64_t most) {
  if (sizes.shape() != TensorShape({batch}))
    return InvalidArgument("MDLSTM: ", what, " have to be [", batch, "], but are ", sizes.shape().DebugString());
  const int32_t* values = sizes.flat<int32_t>().data();
  for (int64_t b = 0; b < batch; ++b)
    if (values[b] < 0 || values[b] > most)
      return InvalidArgument("MDLSTM: image ", b, " of the batch has ", values[b], " in ", what, ", but the array has ",
                             most);
  return OkStatus();
}

// What both ops have in common. Inputs: D arrays of the gates' size, D weights, the sizes.
class MdLstmBase : public OpKernel {
 public:
  MdLstmBase(OpKernelConstruction* construction, bool can_round) : OpKernel(construction) {
    read_attrs(construction, "flip_rows", &flip_rows, "flip_columns", &flip_columns, "stable", &stable_, "rounded",
               &rounded, "D", &count);
    OP_REQUIRES(construction, !rounded || can_round,
                InvalidArgument("MDLSTM: this device can't round the factors of products to bfloat16"));
    OP_REQUIRES(construction,
                static_cast<int>(flip_rows.size()) == count && static_cast<int>(flip_columns.size()) == count,
                InvalidArgument("MDLSTM: flips are needed for each of the ", count, " directions"));
  }

 protected:
  // The sizes of a call, or an error if they are inconsistent.
  Status shape_of(OpKernelContext* context, RtfMdLstmShape* shape) const {
    const TensorShape& r = context->input(count).shape();
    if (r.dims() != 2 || r.dim_size(0) < 2 || 5 * r.dim_size(0) != 2 * r.dim_size(1))
      return InvalidArgument(
          "MDLSTM: recurrent weights have to be [2 * units, 5 * units] with at least one unit, but are ",
          r.DebugString());
    const int64_t units = r.dim_size(0) / 2;
    const TensorShape& gates = context->input(0).shape();
    if (gates.dims() != 4 || gates.dim_size(3) != 5 * units)
      return InvalidArgument("MDLSTM: input has to be [batch, rows, columns, ", 5 * units, "], but is ",
                             gates.DebugString());
    for (int k = 1; k < count; ++k)
      if (context->input(k).shape() != gates || context->input(count + k).shape() != r)
        return InvalidArgument("MDLSTM: all directions have to have the same shapes");
    const Tensor &heights = context->input(2 * count), &widths = context->input(2 * count + 1);
    TF_RETURN_IF_ERROR(check_sizes("heights", heights, gates.dim_size(0), gates.dim_size(1)));
    TF_RETURN_IF_ERROR(check_sizes("widths", widths, gates.dim_size(0), gates.dim_size(2)));
    *shape = RtfMdLstmShape{gates.dim_size(0),
                            gates.dim_size(1),
                            gates.dim_size(2),
                            units,
                            heights.flat<int32_t>().data(),
                            widths.flat<int32_t>().data(),
                            stable_};
    return OkStatus();
  }

  static TensorShape with_width(const RtfMdLstmShape& shape, int64_t width) {
    return TensorShape({shape.batch, shape.rows, shape.columns, width});
  }

  int count;
  std::vector<bool> flip_rows, flip_columns;
  bool rounded;

 private:
  bool stable_;
};

// The memory of a tensor, with the pointer type of a struct's field.
struct Memory {
  const Tensor& tensor;

  template <class T>
  operator T*() const {
    return static_cast<T*>(tensor.data());
  }
};

// Runs the CPU kernels on TensorFlow's threads, with scratch memory from TensorFlow.
struct Cpu {
  using Forward = RtfMdLstmForward;
  using Backward = RtfMdLstmBackward;

  static bool rounds() { return rtf_mdlstm_rounds(); }

  template <class Kernel, class Io>
  static Status run(OpKernelContext* context, const RtfMdLstmShape& shape, bool rounded,
                    const std::vector<Io>& directions, const Kernel& kernel) {
    const int64_t count = directions.size();
    Tensor scratch;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_mdlstm_scratch_size(shape.units, rounded, count), &scratch));
    const RtfThreads threads = tf_threads(context);
    kernel(&shape, rounded, count, directions.data(), floats(&scratch), &threads);
    return OkStatus();
  }

  static Status run(OpKernelContext* context, const RtfMdLstmShape& shape, bool rounded,
                    const std::vector<Forward>& directions) {
    return run(context, shape, rounded, directions, rtf_mdlstm_forward_f32);
  }
  static Status run(OpKernelContext* context, const RtfMdLstmShape& shape, bool rounded,
                    const std::vector<Backward>& directions) {
    return run(context, shape, rounded, directions, rtf_mdlstm_backward_f32);
  }
};

#if RTF_CUDA
// Runs the GPU kernels on TensorFlow's stream. A call takes a limited number of directions.
template <int kType>
struct Gpu {
  using Forward = RtfMdLstmCudaForward;
  using Backward = RtfMdLstmCudaBackward;

  static bool rounds() { return false; }

  template <class Kernel, class Io>
  static Status run(OpKernelContext* context, const RtfMdLstmShape& shape, const std::vector<Io>& directions,
                    bool backward, const Kernel& kernel) {
    for (size_t first = 0; first < directions.size(); first += RTF_MDLSTM_CUDA_DIRECTIONS) {
      const int64_t count = std::min<size_t>(RTF_MDLSTM_CUDA_DIRECTIONS, directions.size() - first);
      RtfMdLstmCudaPlan plan;
      TF_RETURN_IF_ERROR(gpu_status("MDLSTM", rtf_mdlstm_cuda_plan(&shape, count, backward, nullptr, &plan)));
      Tensor workspace;
      TF_RETURN_IF_ERROR(gpu_workspace(context, plan.workspace_bytes, &workspace));
      TF_RETURN_IF_ERROR(gpu_status("MDLSTM", kernel(&shape, count, directions.data() + first, kType, &plan,
                                                     workspace.data(), gpu_stream(context))));
    }
    return OkStatus();
  }

  static Status run(OpKernelContext* context, const RtfMdLstmShape& shape, bool,
                    const std::vector<Forward>& directions) {
    return run(context, shape, directions, false, rtf_mdlstm_forward_cuda);
  }
  static Status run(OpKernelContext* context, const RtfMdLstmShape& shape, bool,
                    const std::vector<Backward>& directions) {
    return run(context, shape, directions, true, rtf_mdlstm_backward_cuda);
  }
};
#endif

template <class Device>
class MdLstmOp : public MdLstmBase {
 public:
  explicit MdLstmOp(OpKernelConstruction* construction) : MdLstmBase(construction, Device::rounds()) {}

  void Compute(OpKernelContext* context) override {
    RtfMdLstmShape shape;
    OP_REQUIRES_OK(context, shape_of(context, &shape));
    std::vector<typename Device::Forward> directions;
    for (int k = 0; k < count; ++k) {
      Tensor *h, *c, *gates;
      const Tensor &z = context->input(k), &r = context->input(count + k);
      OP_REQUIRES_OK(context, context->allocate_output(k, with_width(shape, shape.units), &h));
      OP_REQUIRES_OK(context, context->allocate_output(count + k, with_width(shape, shape.units), &c));
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({k}, 2 * count + k, z.shape(), &gates));
      directions.push_back(
          {flip_rows[k], flip_columns[k], Memory{z}, Memory{r}, Memory{*h}, Memory{*c}, Memory{*gates}});
    }
    OP_REQUIRES_OK(context, Device::run(context, shape, rounded, directions));
  }
};

template <class Device>
class MdLstmGradOp : public MdLstmBase {
 public:
  explicit MdLstmGradOp(OpKernelConstruction* construction) : MdLstmBase(construction, Device::rounds()) {}

  void Compute(OpKernelContext* context) override {
    RtfMdLstmShape shape;
    OP_REQUIRES_OK(context, shape_of(context, &shape));
    const TensorShape state = with_width(shape, shape.units);
    std::vector<typename Device::Backward> directions;
    for (int k = 0; k < count; ++k) {
      const Tensor &gates = context->input(k), &r = context->input(count + k);
      const Tensor &h = context->input(2 * count + 2 + k), &c = context->input(3 * count + 2 + k);
      const Tensor& dh = context->input(4 * count + 2 + k);
      OP_REQUIRES(context, h.shape() == state && c.shape() == state && dh.shape() == state,
                  InvalidArgument("MDLSTM: the gradients do not have the shape of what they are gradients of"));
      Tensor *dz, *before;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({k}, k, gates.shape(), &dz));
      OP_REQUIRES_OK(context, context->allocate_output(count + k, with_width(shape, 2 * shape.units), &before));
      directions.push_back({flip_rows[k], flip_columns[k], Memory{r}, Memory{h}, Memory{c}, Memory{gates}, Memory{dh},
                            Memory{*dz}, Memory{*before}});
    }
    OP_REQUIRES_OK(context, Device::run(context, shape, rounded, directions));
  }
};

#define RTF_REGISTER_MDLSTM(DEVICE, T, KERNELS)                                                               \
  REGISTER_KERNEL_BUILDER(                                                                                    \
      Name("RtfMdLstm").Device(DEVICE).TypeConstraint("T", T).HostMemory("heights").HostMemory("widths"),     \
      MdLstmOp<KERNELS>);                                                                                     \
  REGISTER_KERNEL_BUILDER(                                                                                    \
      Name("RtfMdLstmGrad").Device(DEVICE).TypeConstraint("T", T).HostMemory("heights").HostMemory("widths"), \
      MdLstmGradOp<KERNELS>)

RTF_REGISTER_MDLSTM(DEVICE_CPU, DT_FLOAT, Cpu);
#if RTF_CUDA
RTF_REGISTER_MDLSTM(DEVICE_GPU, DT_FLOAT, Gpu<RTF_MDLSTM_FLOAT>);
RTF_REGISTER_MDLSTM(DEVICE_GPU, DT_BFLOAT16, Gpu<RTF_MDLSTM_BFLOAT16>);
RTF_REGISTER_MDLSTM(DEVICE_GPU, DT_HALF, Gpu<RTF_MDLSTM_HALF>);
#endif

}  // namespace
}  // namespace rtf
