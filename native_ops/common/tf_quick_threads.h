// Lends TensorFlow's threads for work of some ten microseconds, as the products of a step with few rows. To sleep until
// another thread is done, and to be woken, takes as long as such work. Therefore the calling thread waits by spinning,
// and only for what has been begun: what nobody has taken when it comes to it, it does itself.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#include "team.h"
#include "tf_op.h"

namespace rtf {

// The tasks of one call. It outlives the call, since a thread may come when all has been done.
class QuickTasks {
 public:
  QuickTasks(int64_t n, RtfTask task, void* arg) : n_(n), task_(task), arg_(arg) {}

  // Does tasks that nobody has begun.
  void work() {
    for (int64_t index = next_.fetch_add(1); index < n_; index = next_.fetch_add(1)) {
      task_(arg_, index);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void wait() const {
    for (Patience patience; done_.load(std::memory_order_acquire) < n_;) patience.wait();
  }

 private:
  const int64_t n_;
  const RtfTask task_;
  void* const arg_;  // of the call: used only by who has begun a task, for which the call waits
  std::atomic<int64_t> next_{0}, done_{0};
};

// Valid for the duration of the op's call.
inline RtfThreads tf_quick_threads(OpKernelContext* context) {
  RtfThreads threads = tf_threads(context);
  threads.run = [](void* pool, int64_t n_tasks, RtfTask task, void* arg) {
    const auto tasks = std::make_shared<QuickTasks>(n_tasks, task, arg);
    const int64_t others = std::min<int64_t>(n_tasks - 1, pool_size(pool));
    for (int64_t i = 0; i < others; ++i) schedule(pool, [tasks] { tasks->work(); });
    tasks->work();
    tasks->wait();
  };
  return threads;
}

}  // namespace rtf
