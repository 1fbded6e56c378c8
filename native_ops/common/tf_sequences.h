// The sizes of a recurrence, from the tensors that a TensorFlow op gets.
#pragma once

#include "sequences.h"
#include "tf_op.h"

namespace rtf {

// frames x batch, with lengths [batch]; those in the memory of a GPU (not on_host) can't be looked at. The message
// begins with the name of the op.
inline Status read_sequences(const char* op, int64_t frames, int64_t batch, int64_t units, const Tensor& lengths,
                             bool reverse, RtfSequences* sequences, bool on_host = true) {
  if (lengths.shape() != TensorShape({batch}))
    return InvalidArgument(op, ": lengths have to be [", batch, "], but are ", lengths.shape().DebugString());
  const int32_t* values = lengths.flat<int32_t>().data();
  for (int64_t b = 0; on_host && b < batch; ++b)
    if (values[b] < 0 || values[b] > frames)
      return InvalidArgument(op, ": sequence ", b, " of the batch has length ", values[b], ", but there are ", frames,
                             " frames");
  *sequences = RtfSequences{frames, batch, units, values, reverse};
  return OkStatus();
}

}  // namespace rtf
