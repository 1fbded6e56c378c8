#include "rows.h"

#include <algorithm>
#include <cstring>

using tensorflow::Tensor;

Tensor take_rows(const Tensor& from, const std::vector<int>& rows) {
  tensorflow::TensorShape shape = from.shape();
  const int64_t available = shape.dim_size(0);
  shape.set_dim(0, static_cast<int64_t>(rows.size()));
  Tensor to(from.dtype(), shape);
  if (available == 0) return to;
  const size_t bytes = from.TotalBytes() / available;
  const char* source = static_cast<const char*>(from.data());
  char* target = static_cast<char*>(to.data());
  for (size_t i = 0; i < rows.size(); ++i) std::memcpy(target + i * bytes, source + rows[i] * bytes, bytes);
  return to;
}

Tensor labels_of(const std::vector<int>& labels) {
  Tensor to(tensorflow::DT_INT32, {static_cast<int64_t>(labels.size())});
  std::copy(labels.begin(), labels.end(), to.flat<int32_t>().data());
  return to;
}
