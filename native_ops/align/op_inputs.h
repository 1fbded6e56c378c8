// What the TensorFlow ops of the alignments share: their inputs, checked.
#pragma once

#include "../common/tf_op.h"
#include "align.h"

namespace rtf {

// A vector int32 [batch] with values in 0 .. limit.
inline Status check_lengths(const char* name, const Tensor& lengths, int64_t batch, int64_t limit) {
  if (lengths.shape() != TensorShape({batch}))
    return InvalidArgument("alignment: ", name, " has to be [", batch, "], but is ", lengths.shape().DebugString());
  const int32_t* values = lengths.flat<int32_t>().data();
  for (int64_t b = 0; b < batch; ++b)
    if (values[b] < 0 || values[b] > limit)
      return InvalidArgument("alignment: ", name, " of sequence ", b, " is ", values[b], ", but there are ", limit);
  return tensorflow::OkStatus();
}

// A matrix int32 [batch, any]; the first `lengths` entries of each row are classes.
inline Status check_classes(const char* name, const Tensor& labels, const int32_t* lengths, int64_t batch, int64_t classes) {
  if (labels.dims() != 2 || labels.dim_size(0) != batch)
    return InvalidArgument("alignment: ", name, " has to be [", batch, ", any], but is ", labels.shape().DebugString());
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < lengths[b]; ++i) {
      const int32_t label = labels.matrix<int32_t>()(b, i);
      if (label < 0 || label >= classes)
        return InvalidArgument("alignment: ", name, " of sequence ", b, " has ", label, " at place ", i, ", but there are ",
                               classes, " classes");
    }
  return tensorflow::OkStatus();
}

inline Status check_scores(const Tensor& values, const Tensor& lengths, RtfScores* scores) {
  if (values.dims() != 3)
    return InvalidArgument("alignment: scores have to be [time, batch, classes], but are ", values.shape().DebugString());
  *scores = RtfScores{values.dim_size(0), values.dim_size(1), values.dim_size(2), values.flat<float>().data(),
                      lengths.flat<int32_t>().data()};
  return check_lengths("length", lengths, scores->batch, scores->frames);
}

// Memory of a kernel for the time of its call.
inline Status allocate_scratch(OpKernelContext* context, int64_t floats, Tensor* scratch) {
  return context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({floats}), scratch);
}

}  // namespace rtf
