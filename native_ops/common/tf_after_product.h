// What follows a product, as inputs and attributes of an op.
#pragma once

#include "after_product.h"
#include "tf_op.h"

namespace rtf {

// The inputs `bias: biases * float` [columns] and `residual: residuals * float`, of the shape of the result, at most
// one each, behind the others; the attribute `relu: bool`.
class AfterProduct {
 public:
  void read(OpKernelConstruction* construction) {
    read_attrs(construction, "biases", &biases_, "residuals", &residuals_, "relu", &relu_);
    OP_REQUIRES(construction, biases_ <= 1 && residuals_ <= 1,
                InvalidArgument("a product has at most one bias and one residual connection"));
  }

  Status of(OpKernelContext* context, const TensorShape& shape, RtfAfterProduct* after) const {
    OpInputList bias, residual;
    TF_RETURN_IF_ERROR(context->input_list("bias", &bias));
    TF_RETURN_IF_ERROR(context->input_list("residual", &residual));
    const int64_t columns = shape.dim_size(shape.dims() - 1);
    if (biases_ && bias[0].NumElements() != columns)
      return InvalidArgument("product: the bias has ", bias[0].NumElements(), " numbers for ", columns, " columns");
    if (residuals_ && residual[0].shape() != shape)
      return InvalidArgument("product: a residual connection of ", residual[0].shape().DebugString(),
                             " does not fit the result, ", shape.DebugString());
    *after = {biases_ ? floats(bias[0]) : nullptr, residuals_ ? floats(residual[0]) : nullptr, relu_};
    return OkStatus();
  }

 private:
  int biases_, residuals_;
  bool relu_;
};

}  // namespace rtf
