// Checked inputs, shared by the alignment ops.
#pragma once

#include "../common/tf_op.h"
#include "align.h"
#if RTF_CUDA
#include "../common/tf_gpu.h"
#include "align_cuda.h"
#endif

namespace rtf {

// An int32 vector [batch] with values in 0 .. limit.
inline Status check_lengths(const char* name, const Tensor& lengths, int64_t batch, int64_t limit) {
  if (lengths.shape() != TensorShape({batch}))
    return InvalidArgument("alignment: ", name, " has to be [", batch, "], but is ", lengths.shape().DebugString());
  const int32_t* values = lengths.flat<int32_t>().data();
  for (int64_t b = 0; b < batch; ++b)
    if (values[b] < 0 || values[b] > limit)
      return InvalidArgument("alignment: ", name, " of sequence ", b, " is ", values[b], ", but there are ", limit);
  return OkStatus();
}

// An int32 matrix [batch, any]; the first `lengths` entries of each row are classes.
inline Status check_classes(const char* name, const Tensor& labels, const int32_t* lengths, int64_t batch,
                            int64_t classes) {
  if (labels.dims() != 2 || labels.dim_size(0) != batch)
    return InvalidArgument("alignment: ", name, " has to be [", batch, ", any], but is ", labels.shape().DebugString());
  const int32_t* row = labels.flat<int32_t>().data();
  for (int64_t b = 0; b < batch; ++b, row += labels.dim_size(1))
    for (int64_t i = 0; i < lengths[b]; ++i) {
      const int32_t label = row[i];
      if (label < 0 || label >= classes)
        return InvalidArgument("alignment: ", name, " of sequence ", b, " has ", label, " at place ", i,
                               ", but there are ", classes, " classes");
    }
  return OkStatus();
}

inline Status check_scores(const Tensor& values, const Tensor& lengths, RtfScores* scores) {
  if (values.dims() != 3)
    return InvalidArgument("alignment: scores have to be [time, batch, classes], but are ",
                           values.shape().DebugString());
  *scores = RtfScores{values.dim_size(0), values.dim_size(1), values.dim_size(2), floats(values),
                      lengths.flat<int32_t>().data()};
  return check_lengths("length", lengths, scores->batch, scores->frames);
}

// Output shapes of the ops for posteriors, and of those for losses with gradients: [batch], and the shape of the
// scores.
inline Status posteriors_and_total(InferenceContext* context) {
  context->set_output(0, context->input(0));
  context->set_output(1, context->input(1));
  return OkStatus();
}

inline Status loss_and_gradient(InferenceContext* context) {
  context->set_output(0, context->input(1));
  context->set_output(1, context->input(0));
  return OkStatus();
}

// Output shapes of the ops for best paths: [time, batch] and [batch], for scores [time, batch, classes].
inline Status path_and_total(InferenceContext* context) {
  ShapeHandle scores;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 3, &scores));
  context->set_output(0, context->Matrix(context->Dim(scores, 0), context->Dim(scores, 1)));
  context->set_output(1, context->input(1));
  return OkStatus();
}

// Calls run(scratch, threads) with size(number of threads) 32-bit numbers of scratch memory.
template <typename Size, typename Run>
Status run_on_cpu(OpKernelContext* context, const Size& size, const Run& run) {
  const RtfThreads threads = tf_threads(context);
  Tensor scratch;
  TF_RETURN_IF_ERROR(context->allocate_temp(DT_FLOAT, TensorShape({size(threads.n_threads)}), &scratch));
  run(scratch.data(), &threads);
  return OkStatus();
}

#if RTF_CUDA
// Calls run(workspace, stream), which returns null or the text of an error, with a workspace of that many bytes.
template <typename Run>
Status run_on_gpu(OpKernelContext* context, int64_t bytes, const Run& run) {
  Tensor workspace;
  TF_RETURN_IF_ERROR(gpu_workspace(context, bytes, &workspace));
  return gpu_status("alignment", run(gpu_memory(workspace), gpu_stream(context)));
}
#endif

}  // namespace rtf
