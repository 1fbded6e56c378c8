// Tensors as lists of rows along their first axis, which is that of hypotheses or sequences.
#pragma once

#include <vector>

#include "tensorflow/core/framework/tensor.h"

// Returns the rows of a tensor in another order; rows may be left out or repeated.
tensorflow::Tensor take_rows(const tensorflow::Tensor& from, const std::vector<int>& rows);

// Returns a vector of labels.
tensorflow::Tensor labels_of(const std::vector<int>& labels);
