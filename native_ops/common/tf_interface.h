// What the files with TensorFlow ops use of TensorFlow, without its headers, which take a compiler five times as long
// as such a file. The classes have the names and methods of TensorFlow's. tf_bridge.cc alone, which is compiled once
// and linked into each op, includes TensorFlow's headers; no other file may include both.
//
// Classes with deleted constructors stand for objects of TensorFlow: only the bridge knows what is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "parallel.h"

namespace rtf {

// Success, or an error with one of TensorFlow's codes.
class Status {
 public:
  Status() = default;
  Status(int code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == 0; }
  int code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  int code_ = 0;
  std::string message_;
};

inline Status OkStatus() { return Status(); }

// Appends to a message; floats with six digits.
void append(std::string* text, const std::string& part);
void append(std::string* text, const char* part);
void append(std::string* text, double number);
void append(std::string* text, int64_t number);

template <typename Integer, typename = std::enable_if_t<std::is_integral<Integer>::value>>
void append(std::string* text, Integer number) {
  append(text, static_cast<int64_t>(number));
}

template <typename... Parts>
std::string joined(const Parts&... parts) {
  std::string text;
  (append(&text, parts), ...);
  return text;
}

namespace error_code {
constexpr int kInvalidArgument = 3, kNotFound = 5, kResourceExhausted = 8, kInternal = 13;
}

template <typename... Parts>
Status InvalidArgument(const Parts&... parts) {
  return Status(error_code::kInvalidArgument, joined(parts...));
}
template <typename... Parts>
Status NotFound(const Parts&... parts) {
  return Status(error_code::kNotFound, joined(parts...));
}
template <typename... Parts>
Status ResourceExhausted(const Parts&... parts) {
  return Status(error_code::kResourceExhausted, joined(parts...));
}
template <typename... Parts>
Status Internal(const Parts&... parts) {
  return Status(error_code::kInternal, joined(parts...));
}

// Types of tensors, with TensorFlow's numbers.
enum DataType : int { DT_FLOAT = 1, DT_UINT8 = 4, DT_BFLOAT16 = 14, DT_HALF = 19 };

constexpr char DEVICE_CPU[] = "CPU", DEVICE_GPU[] = "GPU";

// Memory for an object of TensorFlow of at most that many bytes.
template <size_t kBytes>
struct alignas(8) Room {
  unsigned char bytes[kBytes];
};

class TensorShape {
 public:
  TensorShape();
  TensorShape(std::initializer_list<int64_t> sizes);  // NOLINT(google-explicit-constructor)
  TensorShape(const TensorShape& other);
  TensorShape& operator=(const TensorShape& other);
  ~TensorShape();

  int dims() const;
  int64_t dim_size(int axis) const;
  void set_dim(int axis, int64_t size);
  bool operator==(const TensorShape& other) const;
  bool operator!=(const TensorShape& other) const { return !(*this == other); }
  std::string DebugString() const;

 private:
  Room<32> room_;
};

// The numbers of a tensor, in the order in memory.
template <typename T>
struct Numbers {
  T* numbers;

  T* data() const { return numbers; }
  T& operator()(int64_t index) const { return numbers[index]; }
};

// A tensor shares its memory with its copies.
class Tensor {
 public:
  Tensor();
  Tensor(const Tensor& other);
  Tensor& operator=(const Tensor& other);
  ~Tensor();

  const TensorShape& shape() const;
  int dims() const;
  int64_t dim_size(int axis) const;
  int64_t NumElements() const;
  int64_t TotalBytes() const;
  DataType dtype() const;
  std::string DebugString() const;  // without numbers

  void* data() const;
  template <typename T>
  Numbers<const T> flat() const {
    return {static_cast<const T*>(data())};
  }
  template <typename T>
  Numbers<T> flat() {
    return {static_cast<T*>(data())};
  }

  bool SharesBufferWith(const Tensor& other) const;
  bool RefCountIsOne() const;
  // Shares the memory of another tensor, in another shape; false if that does not fit.
  bool CopyFrom(const Tensor& other, const TensorShape& shape);

 private:
  Room<64> room_;
};

class OpKernelConstruction {
 public:
  OpKernelConstruction() = delete;

  Status GetAttr(const char* name, bool* value) const;
  Status GetAttr(const char* name, int32_t* value) const;
  Status GetAttr(const char* name, int64_t* value) const;
  Status GetAttr(const char* name, float* value) const;
  Status GetAttr(const char* name, std::string* value) const;
  Status GetAttr(const char* name, std::vector<bool>* value) const;
  void CtxFailure(const Status& status);
  bool ok() const;  // no error so far
};

class OpKernelContext;

// The inputs of a list.
class OpInputList {
 public:
  OpInputList() = default;
  OpInputList(OpKernelContext* context, int first, int size) : context_(context), first_(first), size_(size) {}

  int size() const { return size_; }
  const Tensor& operator[](int index) const;

  class Iterator {
   public:
    Iterator(const OpInputList* list, int index) : list_(list), index_(index) {}
    const Tensor& operator*() const { return (*list_)[index_]; }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return index_ != other.index_; }

   private:
    const OpInputList* list_;
    int index_;
  };
  Iterator begin() const { return Iterator(this, 0); }
  Iterator end() const { return Iterator(this, size()); }

 private:
  OpKernelContext* context_ = nullptr;
  int first_ = 0, size_ = 0;
};

class OpKernelContext {
 public:
  OpKernelContext() = delete;

  int num_inputs() const;
  const Tensor& input(int index);
  Status input_list(const char* name, OpInputList* list);
  Status allocate_output(int index, const TensorShape& shape, Tensor** tensor);
  // Sets `forwarded` to the input whose memory the output has, -1 for none.
  Status forward_input_or_allocate_output(std::initializer_list<int> candidates, int index, const TensorShape& shape,
                                          Tensor** tensor, int* forwarded = nullptr);
  Status allocate_temp(DataType type, const TensorShape& shape, Tensor* tensor);
  void set_output(int index, const Tensor& tensor);
  void CtxFailure(const Status& status);
};

inline const Tensor& OpInputList::operator[](int index) const { return context_->input(first_ + index); }

class OpKernel {
 public:
  explicit OpKernel(OpKernelConstruction*) {}
  virtual ~OpKernel() = default;
  OpKernel(const OpKernel&) = delete;
  OpKernel& operator=(const OpKernel&) = delete;

  virtual void Compute(OpKernelContext* context) = 0;
};

// TensorFlow's threads for the CPU, for the duration of a call.
RtfThreads tf_threads(OpKernelContext* context);
// The number of threads of a pool, and letting one of them do something later.
int pool_size(void* pool);
void schedule(void* pool, std::function<void()> work);

// Where the numbers of tensors are; never destroyed, since a tensor may live longer than anything else.
class Allocator {
 public:
  explicit Allocator(const char* name);
  virtual ~Allocator() = default;

  virtual void* allocate(size_t alignment, size_t bytes) = 0;  // null if there is no memory
  virtual void deallocate(void* memory) = 0;

  // Returns whether there was memory.
  bool make(DataType type, const TensorShape& shape, Tensor* tensor);

 private:
  void* const allocator_;  // TensorFlow's
};

// A variable that is an input. It exists at least as long as this.
class Variable {
 public:
  Variable() = default;
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable();

  Status open(OpKernelContext* context, int input);
  const void* identity() const { return variable_; }
  void lock();  // against readers and other writers
  void unlock();
  bool is_initialized() const;
  Tensor* tensor();

 private:
  void* variable_ = nullptr;
};

// Inference of shapes. A handle is one of TensorFlow's.
struct ShapeHandle {
  const void* handle = nullptr;
};

struct DimensionHandle {
  const void* handle = nullptr;
};

struct DimensionOrConstant {
  DimensionOrConstant(DimensionHandle handle) : dimension(handle) {}  // NOLINT(google-explicit-constructor)
  DimensionOrConstant(int64_t size) : constant(size) {}               // NOLINT(google-explicit-constructor)

  DimensionHandle dimension;
  int64_t constant = 0;
};

class InferenceContext {
 public:
  static constexpr int64_t kUnknownDim = -1;

  InferenceContext() = delete;

  int num_inputs() const;
  int num_outputs() const;
  ShapeHandle input(int index) const;
  void set_output(int index, ShapeHandle shape);
  bool RankKnown(ShapeHandle shape) const;
  int32_t Rank(ShapeHandle shape) const;
  DimensionHandle Dim(ShapeHandle shape, int64_t axis);
  Status WithRank(ShapeHandle shape, int64_t rank, ShapeHandle* result);
  Status WithRankAtLeast(ShapeHandle shape, int64_t rank, ShapeHandle* result);
  Status Merge(ShapeHandle a, ShapeHandle b, ShapeHandle* result);
  Status Merge(DimensionHandle a, DimensionHandle b, DimensionHandle* result);
  Status ReplaceDim(ShapeHandle shape, int64_t axis, DimensionHandle size, ShapeHandle* result);
  Status Divide(DimensionHandle size, int64_t divisor, bool evenly_divisible, DimensionHandle* result);
  Status Subtract(DimensionHandle size, int64_t amount, DimensionHandle* result);
  ShapeHandle MakeShape(const std::vector<DimensionHandle>& sizes);
  ShapeHandle UnknownShape();
  ShapeHandle UnknownShapeOfRank(int64_t rank);
  ShapeHandle Scalar();
  ShapeHandle Vector(DimensionOrConstant size);
  ShapeHandle Matrix(DimensionOrConstant rows, DimensionOrConstant columns);
  DimensionHandle UnknownDim();
  DimensionHandle MakeDim(int64_t size);
  Status GetAttr(const char* name, bool* value) const;
  Status GetAttr(const char* name, int32_t* value) const;
  Status GetAttr(const char* name, int64_t* value) const;
};

// Registration of ops and kernels, by the macros in tf_op.h.
using ShapeFunction = Status (*)(InferenceContext*);

class OpBuilder {
 public:
  explicit OpBuilder(const char* name);
  OpBuilder(const OpBuilder&) = delete;
  OpBuilder& operator=(const OpBuilder&) = delete;
  ~OpBuilder();

  OpBuilder& Attr(const char* declaration);
  OpBuilder& Input(const char* declaration);
  OpBuilder& Output(const char* declaration);
  OpBuilder& SetIsStateful();
  OpBuilder& SetShapeFn(ShapeFunction function);
  bool add();

 private:
  void* const builder_;
};

class Name {
 public:
  explicit Name(const char* op);
  Name(const Name&) = delete;
  Name& operator=(const Name&) = delete;
  ~Name();

  Name& Device(const char* type);
  Name& TypeConstraint(const char* attr, DataType type);
  Name& HostMemory(const char* argument);
  bool add(const char* class_name, OpKernel* (*create)(OpKernelConstruction*));

 private:
  void* const builder_;
};

}  // namespace rtf
