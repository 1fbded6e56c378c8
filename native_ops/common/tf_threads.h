// Lends TensorFlow's own threads to a kernel.
#pragma once

#include "parallel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace rtf {

// Valid for the duration of the op's call.
inline RtfThreads tf_threads(tensorflow::OpKernelContext* context) {
  const tensorflow::DeviceBase::CpuWorkerThreads* workers = context->device()->tensorflow_cpu_worker_threads();
  RtfThreads threads;
  threads.pool = workers->workers;
  threads.n_threads = workers->num_threads;
  threads.run = [](void* pool, int64_t n_tasks, RtfTask task, void* arg) {
    using Pool = tensorflow::thread::ThreadPool;
    const Pool::SchedulingParams one_by_one(Pool::SchedulingStrategy::kFixedBlockSize, absl::nullopt, 1);
    static_cast<Pool*>(pool)->ParallelFor(n_tasks, one_by_one, [&](int64_t begin, int64_t end) {
      for (int64_t index = begin; index < end; ++index) task(arg, index);
    });
  };
  return threads;
}

}  // namespace rtf
