// A step of self-attention in a beam search as a TensorFlow op. The kernels are in attention_cpu.cc and
// beam_attention_cuda.cu.
#include <algorithm>
#include <cstring>

#include "../common/tf_op.h"
#include "../common/tf_quick_threads.h"
#include "attention.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#include "beam_attention_cuda.h"
#endif

namespace rtf {
namespace {

REGISTER_OP("RtfBeamAttention")
    .Attr("heads: int >= 1")
    .Attr("shifts: int >= 0")
    .Input("qkv: float")             // [R, heads * (2 * key + value)]
    .Input("keys: float")            // [capacity, R, heads * key]
    .Input("values: float")          // [capacity, R, heads * value]
    .Input("rows: int32")            // [R, steps]
    .Input("shift: shifts * float")  // at most one: [steps + 1 or more, key]
    .Output("y: float")              // [R, heads * value]
    .Output("next_keys: float")      // the same memory where nothing else refers to it, and there is room for this step
    .Output("next_values: float")    // likewise
    .Output("next_rows: int32")      // [R, steps + 1]
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle qkv, keys, values;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &qkv));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 3, &keys));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 3, &values));
      const DimensionHandle any = context->UnknownDim();
      context->set_output(0, context->MakeShape({context->Dim(qkv, 0), context->Dim(values, 2)}));
      context->set_output(1, context->MakeShape({any, any, context->Dim(keys, 2)}));
      context->set_output(2, context->MakeShape({any, any, context->Dim(values, 2)}));
      context->set_output(3, context->MakeShape({any, any}));
      return OkStatus();
    });

// At least this many frames are allocated; then twice as many each time, so that a frame is copied twice at most.
constexpr int64_t kFirstCapacity = 16;

// What a step reads and writes. frames: keys and values of all steps; before: where those of the steps before are,
// which is the same memory or has to be copied.
struct Arrays {
  const float* qkv;
  const int32_t* rows;
  const float* shift;
  const float* before[2];
  float* frames[2];
  float* y;
  int32_t* next_rows;
};

struct Cpu {
  static constexpr bool kHost = true;

  static Status run(OpKernelContext* context, const RtfBeamAttention& s, const Arrays& x) {
    const int64_t sizes[] = {s.key, s.value};
    for (int i = 0; i < 2; ++i)
      if (x.before[i] != x.frames[i])
        std::memcpy(x.frames[i], x.before[i], s.steps * s.entries * s.heads * sizes[i] * sizeof(float));
    const RtfThreads threads = tf_quick_threads(context);
    rtf_beam_attention_f32(&s, x.qkv, x.rows, x.shift, x.frames[0], x.frames[1], x.y, &threads);
    for (int64_t entry = 0; entry < s.entries; ++entry) {
      int32_t* to = x.next_rows + entry * (s.steps + 1);
      std::copy(x.rows + entry * s.steps, x.rows + (entry + 1) * s.steps, to);
      to[s.steps] = static_cast<int32_t>(entry);
    }
    return OkStatus();
  }
};

#if RTF_CUDA
struct Gpu {
  static constexpr bool kHost = false;

  static Status run(OpKernelContext* context, const RtfBeamAttention& s, const Arrays& x) {
    return gpu_status("beam attention",
                      rtf_beam_attention_cuda_f32(&s, x.qkv, x.rows, x.shift, x.before[0], x.before[1], x.frames[0],
                                                  x.frames[1], x.y, x.next_rows, gpu_stream(context)));
  }
};
#endif

template <class Device>
class BeamAttentionOp : public OpKernel {
 public:
  explicit BeamAttentionOp(OpKernelConstruction* construction) : OpKernel(construction) {
    read_attrs(construction, "heads", &heads_);
    int shifts;
    read_attrs(construction, "shifts", &shifts);
    OP_REQUIRES(construction, shifts <= 1, InvalidArgument("beam attention: more than one shift"));
    shifted_ = shifts > 0;
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &qkv = context->input(0), &rows = context->input(3);
    OP_REQUIRES(
        context, qkv.dims() == 2 && rows.dims() == 2 && rows.dim_size(0) == qkv.dim_size(0),
        InvalidArgument("beam attention: qkv and rows have to be [entries, units] and [entries, steps], but are ",
                        qkv.shape().DebugString(), " and ", rows.shape().DebugString()));
    const int64_t entries = qkv.dim_size(0), steps = rows.dim_size(1);
    int64_t sizes[2];
    const float* frames[2];
    for (int i = 0; i < 2; ++i) {
      const Tensor& before = context->input(1 + i);
      OP_REQUIRES(
          context,
          before.dims() == 3 && before.dim_size(0) >= steps && (!steps || before.dim_size(1) == entries) &&
              before.dim_size(2) % heads_ == 0,
          InvalidArgument("beam attention: for ", entries, " entries and ", steps, " steps keys and values have ",
                          "to be [capacity, entries, heads * size], but are ", before.shape().DebugString()));
      sizes[i] = before.dim_size(2) / heads_;
      frames[i] = floats(before);
    }
    OP_REQUIRES(context, qkv.dim_size(1) == heads_ * (2 * sizes[0] + sizes[1]),
                InvalidArgument("beam attention: qkv has ", qkv.dim_size(1), " units, but the keys and values of ",
                                heads_, " heads have ", sizes[0], " and ", sizes[1]));
    if (shifted_) {
      const Tensor& shift = context->input(4);
      OP_REQUIRES(context, shift.dims() == 2 && shift.dim_size(0) > steps && shift.dim_size(1) == sizes[0],
                  InvalidArgument("beam attention: the shift has to be [", steps + 1, " steps, ", sizes[0],
                                  "], but is ", shift.shape().DebugString()));
    }
    const int32_t* of_frame = rows.flat<int32_t>().data();
    OP_REQUIRES(context,
                !Device::kHost || std::all_of(of_frame, of_frame + rows.NumElements(),
                                              [&](int32_t x) { return x >= 0 && x < entries; }),
                InvalidArgument("beam attention: rows have to be in 0 ... ", entries - 1));
    Tensor *y, *next[2], *next_rows;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({entries, heads_ * sizes[1]}), &y));
    for (int i = 0; i < 2; ++i) OP_REQUIRES_OK(context, with_room(context, i, entries, steps, &next[i]));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({entries, steps + 1}), &next_rows));
    const RtfBeamAttention shape = {entries, steps, heads_, sizes[0], sizes[1]};
    const Arrays arrays = {floats(qkv),
                           of_frame,
                           shifted_ ? floats(context->input(4)) : nullptr,
                           {frames[0], frames[1]},
                           {floats(next[0]), floats(next[1])},
                           floats(y),
                           next_rows->flat<int32_t>().data()};
    OP_REQUIRES_OK(context, Device::run(context, shape, arrays));
  }

 private:
  // Memory for the keys (0) or values (1) and a frame more: that of the input where it has room and nothing else refers
  // to it.
  static Status with_room(OpKernelContext* context, int which, int64_t entries, int64_t steps, Tensor** next) {
    const int input = 1 + which;
    const int64_t room = context->input(input).dim_size(0), width = context->input(input).dim_size(2);
    const TensorShape shape({steps < room ? room : std::max(kFirstCapacity, 2 * room), entries, width});
    if (steps < room) return context->forward_input_or_allocate_output({input}, input, shape, next);
    return context->allocate_output(input, shape, next);
  }

  int64_t heads_;
  bool shifted_;
};

REGISTER_KERNEL_BUILDER(Name("RtfBeamAttention").Device(DEVICE_CPU), BeamAttentionOp<Cpu>);
#if RTF_CUDA
REGISTER_KERNEL_BUILDER(Name("RtfBeamAttention").Device(DEVICE_GPU), BeamAttentionOp<Gpu>);
#endif

}  // namespace
}  // namespace rtf
