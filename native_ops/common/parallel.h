// How a kernel gets threads: its caller lends them, so that TensorFlow's own pool is used and no second one is created.
#pragma once

#include <stdint.h>

extern "C" {

typedef void (*RtfTask)(void* arg, int64_t index);

// run calls task(arg, index) for each index in 0 .. n_tasks - 1, at most n_threads at once, and returns when all are
// done. Tasks must not wait for each other.
typedef struct RtfThreads {
  void (*run)(void* pool, int64_t n_tasks, RtfTask task, void* arg);
  void* pool;
  int n_threads;
} RtfThreads;
}
