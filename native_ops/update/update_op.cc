// Updates of all parameters of an optimizer, and the norm of all gradients, as TensorFlow ops. The kernels are in
// update_cpu.cc and update_cuda.cu.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "../common/tf_op.h"
#include "update.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#endif

namespace rtf {
namespace {

REGISTER_OP("RtfUpdate")
    .Attr(
        "rule: {'sgd', 'momentum', 'keras_sgd', 'adam', 'amsgrad', 'nadam_keras', 'rmsprop', 'rmsprop_centered', "
        "'adagrad', 'adadelta', 'radam', 'lion', 'schedule_free', 'average', 'lamb', 'scaled_adam', 'adafactor'}")
    .Attr("count: int >= 1")
    .Attr("n_slots: int >= 0")
    .Input("vars: count * resource")
    .Input("slots: n_slots * resource")  // those of the first parameter, of the second, ...
    .Input("grads: count * float")
    .Input("numbers: float")  // the factor of all gradients, and those of the rule, see RtfRule
    .Input("when: bool")      // scalar: false if nothing is to change
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return OkStatus(); });

REGISTER_OP("RtfGlobalNorm")
    .Attr("count: int >= 1")
    .Input("arrays: count * float")
    .Output("norm: float")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Scalar());
      return OkStatus();
    });

int rule_of(const std::string& name) {
  static const char* const kNames[] = {"sgd",         "momentum", "keras_sgd",        "adam",    "amsgrad",
                                       "nadam_keras", "rmsprop",  "rmsprop_centered", "adagrad", "adadelta",
                                       "radam",       "lion",     "schedule_free",    "average", "lamb",
                                       "scaled_adam", "adafactor"};
  static_assert(sizeof(kNames) == RTF_RULES * sizeof(*kNames), "a rule is missing");
  return static_cast<int>(std::find(kNames, kNames + RTF_RULES - 1, name) - kNames);
}

// The shape of a slot of a parameter.
TensorShape slot_shape(int rule, int slot, const TensorShape& shape) {
  if (rule == RTF_SCALED_ADAM && slot >= 2) return TensorShape({});
  if (rule == RTF_ADAFACTOR) return TensorShape({shape.dim_size(slot)});
  return shape;
}

struct Cpu {
  static Status copy(OpKernelContext*, void* to, const void* from, int64_t bytes) {
    std::memcpy(to, from, bytes);
    return OkStatus();
  }

  static Status update(OpKernelContext* context, int rule, const float* numbers,
                       const std::vector<RtfParameter>& parameters) {
    const RtfThreads threads = tf_threads(context);
    rtf_update_f32(rule, numbers + 1, numbers, parameters.data(), parameters.size(), &threads);
    return OkStatus();
  }

  static Status norm(OpKernelContext* context, const std::vector<const float*>& arrays,
                     const std::vector<int64_t>& sizes, float* norm) {
    const RtfThreads threads = tf_threads(context);
    const double sum = rtf_sum_of_squares_f32(arrays.data(), sizes.data(), arrays.size(), &threads);
    *norm = static_cast<float>(std::sqrt(sum));
    return OkStatus();
  }
};

#if RTF_CUDA
struct Gpu {
  static Status copy(OpKernelContext* context, void* to, const void* from, int64_t bytes) {
    return gpu_status("update", rtf_copy_cuda(to, from, bytes, gpu_stream(context)));
  }

  static Status update(OpKernelContext* context, int rule, const float* numbers,
                       const std::vector<RtfParameter>& parameters) {
    const int64_t count = parameters.size();
    Tensor scratch;
    TF_RETURN_IF_ERROR(
        allocate_scratch(context, rtf_update_cuda_scratch_size(rule, parameters.data(), count), &scratch));
    return gpu_status("update", rtf_update_cuda_f32(rule, numbers + 1, numbers, parameters.data(), count,
                                                    floats(&scratch), gpu_stream(context)));
  }

  static Status norm(OpKernelContext* context, const std::vector<const float*>& arrays,
                     const std::vector<int64_t>& sizes, float* norm) {
    const int64_t count = arrays.size();
    Tensor scratch;
    TF_RETURN_IF_ERROR(allocate_scratch(context, rtf_norm_of_all_cuda_scratch_size(sizes.data(), count), &scratch));
    return gpu_status("norm of all gradients", rtf_norm_of_all_cuda_f32(arrays.data(), sizes.data(), count, norm,
                                                                        floats(&scratch), gpu_stream(context)));
  }
};
#endif

// Variables, locked against readers and other writers while this exists.
class Locked {
 public:
  Status open(OpKernelContext* context, int first, int count) {
    vars_ = std::vector<Variable>(count);
    for (int i = 0; i < count; ++i) TF_RETURN_IF_ERROR(vars_[i].open(context, first + i));
    for (Variable& var : vars_) locked_.push_back(&var);
    // in one order, so that two updates do not wait for each other
    std::sort(locked_.begin(), locked_.end(), [](auto* a, auto* b) { return a->identity() < b->identity(); });
    const auto same = [](auto* a, auto* b) { return a->identity() == b->identity(); };
    locked_.erase(std::unique(locked_.begin(), locked_.end(), same), locked_.end());
    for (Variable* var : locked_) var->lock();
    open_ = true;
    return OkStatus();
  }

  ~Locked() {
    if (open_)
      for (Variable* var : locked_) var->unlock();
  }

  // The numbers of a variable of this shape, to be changed: copied if something that was read before still has them.
  template <class Device>
  Status numbers(OpKernelContext* context, int i, const TensorShape& shape, float** data) {
    Tensor* tensor = vars_[i].tensor();
    if (!vars_[i].is_initialized() || tensor->dtype() != DT_FLOAT || tensor->shape() != shape)
      return InvalidArgument("update: a variable or slot is ", tensor->DebugString(), ", but its gradient is ",
                             shape.DebugString());
    if (!tensor->RefCountIsOne()) {
      Tensor copy;
      TF_RETURN_IF_ERROR(context->allocate_temp(DT_FLOAT, shape, &copy));
      TF_RETURN_IF_ERROR(Device::copy(context, copy.data(), tensor->data(), tensor->NumElements() * sizeof(float)));
      *tensor = copy;
    }
    *data = floats(tensor);
    return OkStatus();
  }

 private:
  std::vector<Variable> vars_;
  std::vector<Variable*> locked_;
  bool open_ = false;
};

template <class Device>
class UpdateOp : public OpKernel {
 public:
  explicit UpdateOp(OpKernelConstruction* construction) : OpKernel(construction) {
    std::string rule;
    int slots;
    read_attrs(construction, "rule", &rule, "count", &count_, "n_slots", &slots);
    rule_ = rule_of(rule);
    OP_REQUIRES(construction, slots == count_ * rtf_update_slots(rule_),
                InvalidArgument("update: ", rule, " has ", rtf_update_slots(rule_), " slots for each parameter"));
  }

  void Compute(OpKernelContext* context) override {
    const int per_parameter = rtf_update_slots(rule_), n_vars = count_ * (1 + per_parameter);
    const Tensor& numbers = context->input(n_vars + count_);
    OP_REQUIRES(context, numbers.NumElements() == 1 + rtf_update_numbers(rule_),
                InvalidArgument("update: the rule takes ", rtf_update_numbers(rule_), " numbers, and a factor"));
    const Tensor& when = context->input(n_vars + count_ + 1);
    OP_REQUIRES(context, when.NumElements() == 1, InvalidArgument("update: whether to update has to be a scalar"));
    if (!when.flat<bool>()(0)) return;
    Locked locked;
    OP_REQUIRES_OK(context, locked.open(context, 0, n_vars));
    std::vector<RtfParameter> parameters(count_);
    for (int p = 0; p < count_; ++p) {
      const Tensor& gradient = context->input(n_vars + p);
      RtfParameter& parameter = parameters[p];
      const int rank = gradient.dims();
      OP_REQUIRES(
          context, rank == 2 || rule_ != RTF_ADAFACTOR,
          InvalidArgument("update: the rule is for matrices, but a gradient is ", gradient.shape().DebugString()));
      parameter = {gradient.NumElements(), rank ? gradient.dim_size(rank - 1) : 1, nullptr, floats(gradient), {}};
      OP_REQUIRES_OK(context, locked.numbers<Device>(context, p, gradient.shape(), &parameter.value));
      for (int i = 0; i < per_parameter; ++i) {
        const TensorShape shape = slot_shape(rule_, i, gradient.shape());
        OP_REQUIRES_OK(context,
                       locked.numbers<Device>(context, count_ + p * per_parameter + i, shape, &parameter.slots[i]));
      }
    }
    OP_REQUIRES_OK(context, Device::update(context, rule_, floats(numbers), parameters));
  }

 private:
  int rule_, count_;
};

template <class Device>
class GlobalNormOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<const float*> arrays;
    std::vector<int64_t> sizes;
    for (int i = 0; i < context->num_inputs(); ++i) {
      arrays.push_back(floats(context->input(i)));
      sizes.push_back(context->input(i).NumElements());
    }
    Tensor* norm;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &norm));
    OP_REQUIRES_OK(context, Device::norm(context, arrays, sizes, floats(norm)));
  }
};

REGISTER_KERNEL_BUILDER(Name("RtfUpdate").Device(DEVICE_CPU), UpdateOp<Cpu>);
REGISTER_KERNEL_BUILDER(Name("RtfGlobalNorm").Device(DEVICE_CPU), GlobalNormOp<Cpu>);
#if RTF_CUDA
REGISTER_KERNEL_BUILDER(Name("RtfUpdate").Device(DEVICE_GPU).HostMemory("vars").HostMemory("slots").HostMemory("when"),
                        UpdateOp<Gpu>);
REGISTER_KERNEL_BUILDER(Name("RtfGlobalNorm").Device(DEVICE_GPU), GlobalNormOp<Gpu>);
#endif

}  // namespace
}  // namespace rtf
