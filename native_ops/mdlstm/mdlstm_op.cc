// The MDLSTM as TensorFlow ops: shapes, memory and threads. The arithmetic is in mdlstm_cpu.cc.
#include <vector>

#include "../common/tf_op.h"
#include "mdlstm.h"

namespace rtf {
namespace {

// All lists have an entry for each of the D directions.
REGISTER_OP("RtfMdLstm")
    .Attr("D: int >= 1")
    .Attr("flip_rows: list(bool)")
    .Attr("flip_columns: list(bool)")
    .Attr("stable: bool")
    .Input("z: D * float")       // [B, Y, X, 5H]: W x + b
    .Input("r: D * float")       // [2H, 5H]
    .Input("heights: int32")     // [B]
    .Input("widths: int32")      // [B]
    .Output("h: D * float")      // [B, Y, X, H]
    .Output("c: D * float")      // [B, Y, X, H]
    .Output("gates: D * float")  // [B, Y, X, 5H]
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
      return tensorflow::OkStatus();
    });

REGISTER_OP("RtfMdLstmGrad")
    .Attr("D: int >= 1")
    .Attr("flip_rows: list(bool)")
    .Attr("flip_columns: list(bool)")
    .Attr("stable: bool")
    .Input("gates: D * float")
    .Input("r: D * float")
    .Input("heights: int32")
    .Input("widths: int32")
    .Input("h: D * float")
    .Input("c: D * float")
    .Input("dh: D * float")
    .Output("dz: D * float")      // [B, Y, X, 5H]
    .Output("before: D * float")  // [B, Y, X, 2H]
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
      return tensorflow::OkStatus();
    });

Status check_sizes(const char* what, const Tensor& sizes, int64_t batch, int64_t most) {
  if (sizes.shape() != TensorShape({batch}))
    return InvalidArgument("MDLSTM: ", what, " have to be [", batch, "], but are ", sizes.shape().DebugString());
  const int32_t* values = sizes.flat<int32_t>().data();
  for (int64_t b = 0; b < batch; ++b)
    if (values[b] < 0 || values[b] > most)
      return InvalidArgument("MDLSTM: image ", b, " of the batch has ", values[b], " in ", what, ", but the array has ",
                             most);
  return tensorflow::OkStatus();
}

// What both ops have in common. Inputs: D arrays of the gates' size, D weights, the sizes.
class MdLstmBase : public OpKernel {
 public:
  explicit MdLstmBase(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("flip_rows", &flip_rows));
    OP_REQUIRES_OK(construction, construction->GetAttr("flip_columns", &flip_columns));
    OP_REQUIRES_OK(construction, construction->GetAttr("stable", &stable_));
    OP_REQUIRES_OK(construction, construction->GetAttr("D", &count));
    OP_REQUIRES(construction, static_cast<int>(flip_rows.size()) == count && static_cast<int>(flip_columns.size()) == count,
                InvalidArgument("MDLSTM: flips are needed for each of the ", count, " directions"));
  }

 protected:
  // The sizes of a call, or why they do not fit.
  Status shape_of(OpKernelContext* context, RtfMdLstmShape* shape) const {
    const TensorShape& r = context->input(count).shape();
    if (r.dims() != 2 || r.dim_size(0) < 2 || 5 * r.dim_size(0) != 2 * r.dim_size(1))
      return InvalidArgument("MDLSTM: recurrent weights have to be [2 * units, 5 * units] with at least one unit, but are ",
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
    return tensorflow::OkStatus();
  }

  static TensorShape with_width(const RtfMdLstmShape& shape, int64_t width) {
    return TensorShape({shape.batch, shape.rows, shape.columns, width});
  }

  Status allocate_scratch(OpKernelContext* context, const RtfMdLstmShape& shape, Tensor* scratch) const {
    const TensorShape size({rtf_mdlstm_scratch_size(shape.units, count)});
    return context->allocate_temp(tensorflow::DT_FLOAT, size, scratch);
  }

  int count;
  std::vector<bool> flip_rows, flip_columns;

 private:
  bool stable_;
};

float* floats(Tensor* tensor) { return tensor->flat<float>().data(); }

class MdLstmOp : public MdLstmBase {
 public:
  using MdLstmBase::MdLstmBase;

  void Compute(OpKernelContext* context) override {
    RtfMdLstmShape shape;
    OP_REQUIRES_OK(context, shape_of(context, &shape));
    std::vector<RtfMdLstmForward> directions;
    for (int k = 0; k < count; ++k) {
      Tensor *h, *c, *gates;
      const Tensor &z = context->input(k), &r = context->input(count + k);
      OP_REQUIRES_OK(context, context->allocate_output(k, with_width(shape, shape.units), &h));
      OP_REQUIRES_OK(context, context->allocate_output(count + k, with_width(shape, shape.units), &c));
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({k}, 2 * count + k, z.shape(), &gates));
      directions.push_back(RtfMdLstmForward{flip_rows[k], flip_columns[k], z.flat<float>().data(),
                                            r.flat<float>().data(), floats(h), floats(c), floats(gates)});
    }
    Tensor scratch;
    OP_REQUIRES_OK(context, allocate_scratch(context, shape, &scratch));
    const RtfThreads threads = tf_threads(context);
    rtf_mdlstm_forward_f32(&shape, count, directions.data(), floats(&scratch), &threads);
  }
};

class MdLstmGradOp : public MdLstmBase {
 public:
  using MdLstmBase::MdLstmBase;

  void Compute(OpKernelContext* context) override {
    RtfMdLstmShape shape;
    OP_REQUIRES_OK(context, shape_of(context, &shape));
    const TensorShape state = with_width(shape, shape.units);
    std::vector<RtfMdLstmBackward> directions;
    for (int k = 0; k < count; ++k) {
      const Tensor &gates = context->input(k), &r = context->input(count + k);
      const Tensor &h = context->input(2 * count + 2 + k), &c = context->input(3 * count + 2 + k);
      const Tensor& dh = context->input(4 * count + 2 + k);
      OP_REQUIRES(context, h.shape() == state && c.shape() == state && dh.shape() == state,
                  InvalidArgument("MDLSTM: the gradients do not have the shape of what they are gradients of"));
      Tensor *dz, *before;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({k}, k, gates.shape(), &dz));
      OP_REQUIRES_OK(context, context->allocate_output(count + k, with_width(shape, 2 * shape.units), &before));
      directions.push_back(RtfMdLstmBackward{flip_rows[k], flip_columns[k], r.flat<float>().data(),
                                             h.flat<float>().data(), c.flat<float>().data(), gates.flat<float>().data(),
                                             dh.flat<float>().data(), floats(dz), floats(before)});
    }
    Tensor scratch;
    OP_REQUIRES_OK(context, allocate_scratch(context, shape, &scratch));
    const RtfThreads threads = tf_threads(context);
    rtf_mdlstm_backward_f32(&shape, count, directions.data(), floats(&scratch), &threads);
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfMdLstm").Device(tensorflow::DEVICE_CPU), MdLstmOp);
REGISTER_KERNEL_BUILDER(Name("RtfMdLstmGrad").Device(tensorflow::DEVICE_CPU), MdLstmGradOp);

}  // namespace
}  // namespace rtf
