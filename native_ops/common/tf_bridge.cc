// Implements tf_interface.h with TensorFlow's classes.
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tf_interface.h"
#if RTF_CUDA
#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "tf_gpu.h"
#include "xla/stream_executor/stream.h"
#endif

// TensorFlow's macro of this name expects its own status.
#undef TF_RETURN_IF_ERROR

namespace rtf {
namespace {

namespace tf = tensorflow;
namespace inference = tensorflow::shape_inference;

static_assert(int{DT_FLOAT} == int{tf::DT_FLOAT} && int{DT_UINT8} == int{tf::DT_UINT8} &&
                  int{DT_BFLOAT16} == int{tf::DT_BFLOAT16} && int{DT_HALF} == int{tf::DT_HALF},
              "types differ in their numbers");

// Which class of TensorFlow one of ours stands for. An object that TensorFlow has made is never looked at as ours: its
// address goes to the files with ops, and comes back. Ours has it in its room.
template <typename Ours>
struct TheirsOf;
template <>
struct TheirsOf<TensorShape> {
  using type = tf::TensorShape;
};
template <>
struct TheirsOf<Tensor> {
  using type = tf::Tensor;
};
template <>
struct TheirsOf<OpKernelConstruction> {
  using type = tf::OpKernelConstruction;
};
template <>
struct TheirsOf<OpKernelContext> {
  using type = tf::OpKernelContext;
};
template <>
struct TheirsOf<InferenceContext> {
  using type = inference::InferenceContext;
};
template <>
struct TheirsOf<ShapeHandle> {
  using type = inference::ShapeHandle;
};
template <>
struct TheirsOf<DimensionHandle> {
  using type = inference::DimensionHandle;
};

template <typename Ours>
typename TheirsOf<Ours>::type* theirs(Ours* ours) {
  return reinterpret_cast<typename TheirsOf<Ours>::type*>(ours);
}
template <typename Ours>
const typename TheirsOf<Ours>::type& theirs(const Ours& ours) {
  return reinterpret_cast<const typename TheirsOf<Ours>::type&>(ours);
}

template <typename Ours>
constexpr bool has_room() {
  using Theirs = typename TheirsOf<Ours>::type;
  return sizeof(Theirs) <= sizeof(Ours) && alignof(Theirs) <= alignof(Ours);
}
static_assert(has_room<Tensor>() && has_room<TensorShape>(), "an object of TensorFlow does not fit into ours");

template <typename Handle>
constexpr bool is_same_handle() {
  using Theirs = typename TheirsOf<Handle>::type;
  return sizeof(Theirs) == sizeof(Handle) && std::is_trivially_copyable<Theirs>::value;
}
static_assert(is_same_handle<ShapeHandle>() && is_same_handle<DimensionHandle>(), "handles are not one pointer");

template <typename Ours>
Ours ours(const typename TheirsOf<Ours>::type& handle) {
  Ours result;
  std::memcpy(&result, &handle, sizeof(result));
  return result;
}

inference::DimensionOrConstant theirs(const DimensionOrConstant& size) {
  if (size.dimension.handle != nullptr) return inference::DimensionOrConstant(theirs(size.dimension));
  return inference::DimensionOrConstant(size.constant);
}

Status ours(const tf::Status& status) {
  if (status.ok()) return Status();
  return Status(static_cast<int>(status.code()), std::string(status.message()));
}

tf::Status theirs(const Status& status) {
  if (status.ok()) return tf::OkStatus();
  return tf::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

}  // namespace

void append(std::string* text, const std::string& part) { text->append(part); }
void append(std::string* text, const char* part) { text->append(part); }
void append(std::string* text, int64_t number) { text->append(std::to_string(number)); }
void append(std::string* text, double number) {
  char digits[32];
  std::snprintf(digits, sizeof(digits), "%g", number);
  text->append(digits);
}

TensorShape::TensorShape() { new (&room_) tf::TensorShape(); }
TensorShape::TensorShape(std::initializer_list<int64_t> sizes) {
  new (&room_) tf::TensorShape(absl::Span<const int64_t>(sizes.begin(), sizes.size()));
}
TensorShape::TensorShape(const TensorShape& other) { new (&room_) tf::TensorShape(theirs(other)); }
TensorShape& TensorShape::operator=(const TensorShape& other) {
  *theirs(this) = theirs(other);
  return *this;
}
TensorShape::~TensorShape() { theirs(this)->~TensorShape(); }
int TensorShape::dims() const { return theirs(*this).dims(); }
int64_t TensorShape::dim_size(int axis) const { return theirs(*this).dim_size(axis); }
void TensorShape::set_dim(int axis, int64_t size) { theirs(this)->set_dim(axis, size); }
bool TensorShape::operator==(const TensorShape& other) const { return theirs(*this) == theirs(other); }
std::string TensorShape::DebugString() const { return theirs(*this).DebugString(); }

Tensor::Tensor() { new (&room_) tf::Tensor(); }
Tensor::Tensor(const Tensor& other) { new (&room_) tf::Tensor(theirs(other)); }
Tensor& Tensor::operator=(const Tensor& other) {
  *theirs(this) = theirs(other);
  return *this;
}
Tensor::~Tensor() { theirs(this)->~Tensor(); }
const TensorShape& Tensor::shape() const { return reinterpret_cast<const TensorShape&>(theirs(*this).shape()); }
int Tensor::dims() const { return theirs(*this).dims(); }
int64_t Tensor::dim_size(int axis) const { return theirs(*this).dim_size(axis); }
int64_t Tensor::NumElements() const { return theirs(*this).NumElements(); }
int64_t Tensor::TotalBytes() const { return static_cast<int64_t>(theirs(*this).TotalBytes()); }
DataType Tensor::dtype() const { return static_cast<DataType>(theirs(*this).dtype()); }
std::string Tensor::DebugString() const { return theirs(*this).DebugString(0); }
void* Tensor::data() const { return theirs(*this).data(); }
bool Tensor::SharesBufferWith(const Tensor& other) const { return theirs(*this).SharesBufferWith(theirs(other)); }
bool Tensor::RefCountIsOne() const { return theirs(*this).RefCountIsOne(); }
bool Tensor::CopyFrom(const Tensor& other, const TensorShape& shape) {
  return theirs(this)->CopyFrom(theirs(other), theirs(shape));
}

#define RTF_ATTRIBUTE(CLASS, TYPE)                                      \
  Status CLASS::GetAttr(const char* name, TYPE* value) const {          \
    return ours(theirs(*this).GetAttr(absl::string_view(name), value)); \
  }
RTF_ATTRIBUTE(OpKernelConstruction, bool)
RTF_ATTRIBUTE(OpKernelConstruction, int32_t)
RTF_ATTRIBUTE(OpKernelConstruction, int64_t)
RTF_ATTRIBUTE(OpKernelConstruction, float)
RTF_ATTRIBUTE(OpKernelConstruction, std::string)
RTF_ATTRIBUTE(OpKernelConstruction, std::vector<bool>)
RTF_ATTRIBUTE(InferenceContext, bool)
RTF_ATTRIBUTE(InferenceContext, int32_t)
RTF_ATTRIBUTE(InferenceContext, int64_t)
#undef RTF_ATTRIBUTE

void OpKernelConstruction::CtxFailure(const Status& status) { theirs(this)->CtxFailure(theirs(status)); }
bool OpKernelConstruction::ok() const { return theirs(*this).status().ok(); }

int OpKernelContext::num_inputs() const { return theirs(*this).num_inputs(); }
const Tensor& OpKernelContext::input(int index) { return reinterpret_cast<const Tensor&>(theirs(this)->input(index)); }
Status OpKernelContext::input_list(const char* name, OpInputList* list) {
  int begin = 0, end = 0;
  const tf::Status status = theirs(this)->op_kernel().InputRange(name, &begin, &end);
  *list = OpInputList(this, begin, end - begin);
  return ours(status);
}
Status OpKernelContext::allocate_output(int index, const TensorShape& shape, Tensor** tensor) {
  tf::Tensor* made = nullptr;
  const tf::Status status = theirs(this)->allocate_output(index, theirs(shape), &made);
  *tensor = reinterpret_cast<Tensor*>(made);
  return ours(status);
}
Status OpKernelContext::forward_input_or_allocate_output(std::initializer_list<int> candidates, int index,
                                                         const TensorShape& shape, Tensor** tensor, int* forwarded) {
  tf::Tensor* made = nullptr;
  const absl::Span<const int> inputs(candidates.begin(), candidates.size());
  const tf::Status status =
      theirs(this)->forward_input_or_allocate_output(inputs, index, theirs(shape), &made, forwarded);
  *tensor = reinterpret_cast<Tensor*>(made);
  return ours(status);
}
Status OpKernelContext::allocate_temp(DataType type, const TensorShape& shape, Tensor* tensor) {
  return ours(theirs(this)->allocate_temp(static_cast<tf::DataType>(type), theirs(shape), theirs(tensor)));
}
void OpKernelContext::set_output(int index, const Tensor& tensor) { theirs(this)->set_output(index, theirs(tensor)); }
void OpKernelContext::CtxFailure(const Status& status) { theirs(this)->CtxFailure(theirs(status)); }

RtfThreads tf_threads(OpKernelContext* context) {
  const tf::DeviceBase::CpuWorkerThreads* workers = theirs(context)->device()->tensorflow_cpu_worker_threads();
  RtfThreads threads;
  threads.pool = workers->workers;
  threads.n_threads = workers->num_threads;
  threads.run = [](void* pool, int64_t n_tasks, RtfTask task, void* arg) {
    using Pool = tf::thread::ThreadPool;
    const Pool::SchedulingParams one_by_one(Pool::SchedulingStrategy::kFixedBlockSize, absl::nullopt, 1);
    static_cast<Pool*>(pool)->ParallelFor(n_tasks, one_by_one, [&](int64_t begin, int64_t end) {
      for (int64_t index = begin; index < end; ++index) task(arg, index);
    });
  };
  return threads;
}

int pool_size(void* pool) { return static_cast<tf::thread::ThreadPool*>(pool)->NumThreads(); }
void schedule(void* pool, std::function<void()> work) {
  static_cast<tf::thread::ThreadPool*>(pool)->Schedule(std::move(work));
}

namespace {

class BridgedAllocator : public tf::Allocator {
 public:
  BridgedAllocator(const char* name, rtf::Allocator* memory) : name_(name), memory_(memory) {}

  std::string Name() override { return name_; }
  void* AllocateRaw(size_t alignment, size_t bytes) override { return memory_->allocate(alignment, bytes); }
  void DeallocateRaw(void* memory) override { memory_->deallocate(memory); }

 private:
  const char* const name_;
  rtf::Allocator* const memory_;
};

}  // namespace

Allocator::Allocator(const char* name) : allocator_(new BridgedAllocator(name, this)) {}
bool Allocator::make(DataType type, const TensorShape& shape, Tensor* tensor) {
  *theirs(tensor) =
      tf::Tensor(static_cast<BridgedAllocator*>(allocator_), static_cast<tf::DataType>(type), theirs(shape));
  return theirs(tensor)->IsInitialized();
}

Variable::~Variable() {
  if (variable_ != nullptr) static_cast<tf::Var*>(variable_)->Unref();
}
Status Variable::open(OpKernelContext* context, int input) {
  tf::core::RefCountPtr<tf::Var> found;
  const tf::Status status = tf::LookupResource(theirs(context), tf::HandleFromInput(theirs(context), input), &found);
  variable_ = found.release();
  return ours(status);
}
void Variable::lock() { static_cast<tf::Var*>(variable_)->mu()->lock(); }
void Variable::unlock() { static_cast<tf::Var*>(variable_)->mu()->unlock(); }
bool Variable::is_initialized() const { return static_cast<tf::Var*>(variable_)->is_initialized; }
Tensor* Variable::tensor() { return reinterpret_cast<Tensor*>(static_cast<tf::Var*>(variable_)->tensor()); }

int InferenceContext::num_inputs() const { return theirs(*this).num_inputs(); }
int InferenceContext::num_outputs() const { return theirs(*this).num_outputs(); }
ShapeHandle InferenceContext::input(int index) const { return ours<ShapeHandle>(theirs(*this).input(index)); }
void InferenceContext::set_output(int index, ShapeHandle shape) { theirs(this)->set_output(index, theirs(shape)); }
bool InferenceContext::RankKnown(ShapeHandle shape) const {
  return inference::InferenceContext::RankKnown(theirs(shape));
}
int32_t InferenceContext::Rank(ShapeHandle shape) const { return inference::InferenceContext::Rank(theirs(shape)); }
DimensionHandle InferenceContext::Dim(ShapeHandle shape, int64_t axis) {
  return ours<DimensionHandle>(theirs(this)->Dim(theirs(shape), axis));
}
Status InferenceContext::WithRank(ShapeHandle shape, int64_t rank, ShapeHandle* result) {
  return ours(theirs(this)->WithRank(theirs(shape), rank, theirs(result)));
}
Status InferenceContext::WithRankAtLeast(ShapeHandle shape, int64_t rank, ShapeHandle* result) {
  return ours(theirs(this)->WithRankAtLeast(theirs(shape), rank, theirs(result)));
}
Status InferenceContext::Merge(ShapeHandle a, ShapeHandle b, ShapeHandle* result) {
  return ours(theirs(this)->Merge(theirs(a), theirs(b), theirs(result)));
}
Status InferenceContext::Merge(DimensionHandle a, DimensionHandle b, DimensionHandle* result) {
  return ours(theirs(this)->Merge(theirs(a), theirs(b), theirs(result)));
}
Status InferenceContext::ReplaceDim(ShapeHandle shape, int64_t axis, DimensionHandle size, ShapeHandle* result) {
  return ours(theirs(this)->ReplaceDim(theirs(shape), axis, theirs(size), theirs(result)));
}
Status InferenceContext::Divide(DimensionHandle size, int64_t divisor, bool evenly_divisible, DimensionHandle* result) {
  return ours(theirs(this)->Divide(theirs(size), divisor, evenly_divisible, theirs(result)));
}
Status InferenceContext::Subtract(DimensionHandle size, int64_t amount, DimensionHandle* result) {
  return ours(theirs(this)->Subtract(theirs(size), amount, theirs(result)));
}
ShapeHandle InferenceContext::MakeShape(const std::vector<DimensionHandle>& sizes) {
  std::vector<inference::DimensionHandle> all;
  for (const DimensionHandle& size : sizes) all.push_back(theirs(size));
  return ours<ShapeHandle>(theirs(this)->MakeShape(all));
}
ShapeHandle InferenceContext::UnknownShape() { return ours<ShapeHandle>(theirs(this)->UnknownShape()); }
ShapeHandle InferenceContext::UnknownShapeOfRank(int64_t rank) {
  return ours<ShapeHandle>(theirs(this)->UnknownShapeOfRank(rank));
}
ShapeHandle InferenceContext::Scalar() { return ours<ShapeHandle>(theirs(this)->Scalar()); }
ShapeHandle InferenceContext::Vector(DimensionOrConstant size) {
  return ours<ShapeHandle>(theirs(this)->Vector(theirs(size)));
}
ShapeHandle InferenceContext::Matrix(DimensionOrConstant rows, DimensionOrConstant columns) {
  return ours<ShapeHandle>(theirs(this)->Matrix(theirs(rows), theirs(columns)));
}
DimensionHandle InferenceContext::UnknownDim() { return ours<DimensionHandle>(theirs(this)->UnknownDim()); }
DimensionHandle InferenceContext::MakeDim(int64_t size) { return ours<DimensionHandle>(theirs(this)->MakeDim(size)); }

OpBuilder::OpBuilder(const char* name) : builder_(new tf::OpDefBuilder(name)) {}
OpBuilder::~OpBuilder() { delete static_cast<tf::OpDefBuilder*>(builder_); }
OpBuilder& OpBuilder::Attr(const char* declaration) {
  static_cast<tf::OpDefBuilder*>(builder_)->Attr(declaration);
  return *this;
}
OpBuilder& OpBuilder::Input(const char* declaration) {
  static_cast<tf::OpDefBuilder*>(builder_)->Input(declaration);
  return *this;
}
OpBuilder& OpBuilder::Output(const char* declaration) {
  static_cast<tf::OpDefBuilder*>(builder_)->Output(declaration);
  return *this;
}
OpBuilder& OpBuilder::SetIsStateful() {
  static_cast<tf::OpDefBuilder*>(builder_)->SetIsStateful();
  return *this;
}
OpBuilder& OpBuilder::SetShapeFn(ShapeFunction function) {
  static_cast<tf::OpDefBuilder*>(builder_)->SetShapeFn([function](inference::InferenceContext* context) {
    return theirs(function(reinterpret_cast<InferenceContext*>(context)));
  });
  return *this;
}
bool OpBuilder::add() {
  tf::OpRegistry::Global()->Register([builder = *static_cast<tf::OpDefBuilder*>(builder_)](
                                         tf::OpRegistrationData* data) { return builder.Finalize(data); });
  return true;
}

namespace {

// A kernel of TensorFlow that runs one of ours.
class BridgedKernel : public tf::OpKernel {
 public:
  BridgedKernel(tf::OpKernelConstruction* construction, rtf::OpKernel* (*create)(OpKernelConstruction*))
      : tf::OpKernel(construction), kernel_(create(reinterpret_cast<OpKernelConstruction*>(construction))) {}

  void Compute(tf::OpKernelContext* context) override { kernel_->Compute(reinterpret_cast<OpKernelContext*>(context)); }

 private:
  const std::unique_ptr<rtf::OpKernel> kernel_;
};

class BridgedFactory : public tf::kernel_factory::OpKernelFactory {
 public:
  explicit BridgedFactory(rtf::OpKernel* (*create)(OpKernelConstruction*)) : create_(create) {}

  tf::OpKernel* Create(tf::OpKernelConstruction* construction) override {
    return new BridgedKernel(construction, create_);
  }

 private:
  rtf::OpKernel* (*const create_)(OpKernelConstruction*);
};

}  // namespace

Name::Name(const char* op) : builder_(new tf::KernelDefBuilder(op)) {}
Name::~Name() { delete static_cast<tf::KernelDefBuilder*>(builder_); }
Name& Name::Device(const char* type) {
  static_cast<tf::KernelDefBuilder*>(builder_)->Device(type);
  return *this;
}
Name& Name::TypeConstraint(const char* attr, DataType type) {
  static_cast<tf::KernelDefBuilder*>(builder_)->TypeConstraint(attr, static_cast<tf::DataType>(type));
  return *this;
}
Name& Name::HostMemory(const char* argument) {
  static_cast<tf::KernelDefBuilder*>(builder_)->HostMemory(argument);
  return *this;
}
bool Name::add(const char* class_name, OpKernel* (*create)(OpKernelConstruction*)) {
  tf::kernel_factory::OpKernelRegistrar(static_cast<tf::KernelDefBuilder*>(builder_)->Build(), class_name,
                                        std::make_unique<BridgedFactory>(create));
  return true;
}

#if RTF_CUDA
void* gpu_stream(OpKernelContext* context) {
  return theirs(context)->op_device_context()->stream()->platform_specific_handle().stream;
}
bool tensor_float_32_enabled() { return tf::tensor_float_32_execution_enabled(); }
#endif

}  // namespace rtf
