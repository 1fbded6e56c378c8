// What the drivers of the sanitizers share: threads, arrays of numbers, and a look at the results.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "common/parallel.h"

// Threads of its own for each call, such that a race between tasks shows.
inline void run_threads(void*, int64_t n_tasks, RtfTask task, void* arg) {
  std::vector<std::thread> threads;
  for (int64_t index = 0; index < n_tasks; ++index) threads.emplace_back(task, arg, index);
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<float> random_array(int64_t size) {
  std::vector<float> x(size);
  for (float& value : x) value = std::rand() / float(RAND_MAX) - 0.5f;
  return x;
}

inline bool finite(const std::vector<float>& x) {
  for (float value : x)
    if (!std::isfinite(value)) return false;
  return true;
}
