// What the drivers of the sanitizers share: threads, arrays of numbers, and a look at the results.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
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

// The tasks one after the other: nothing may wait for a task that has not begun.
inline void run_in_turn(void*, int64_t n_tasks, RtfTask task, void* arg) {
  for (int64_t index = 0; index < n_tasks; ++index) task(arg, index);
}

// Runs results(size, threads) of a recurrence over many sizes: all have to be finite, and the same for any threads. The large
// ones are those for which threads share the units of a few sequences.
template <typename Size, typename Results>
int check_recurrence(const Results& results) {
  std::vector<Size> sizes;
  for (int64_t T : {0, 1, 2, 5})
    for (int64_t B : {0, 1, 3, 8, 13})
      for (int64_t H : {1, 7, 16, 33, 64})
        for (int reverse : {0, 1}) sizes.push_back(Size{T, B, H, nullptr, reverse});
  for (int64_t B : {1, 3}) sizes.push_back(Size{250 / B, B, 130, nullptr, B > 1});
  for (int64_t B : {8, 17, 40, 70})  // on the tile unit, where there is one; the last one not in a team
    for (int64_t H : {7, 33, 96}) sizes.push_back(Size{320 / B, B, H, nullptr, B > 8});
  for (Size& size : sizes) {
    std::vector<int32_t> lengths(size.batch);
    for (int64_t b = 0; b < size.batch; ++b) lengths[b] = b == 0 ? size.frames : std::rand() % (size.frames + 1);
    size.lengths = lengths.data();
    const std::vector<float> alone = results(size, RtfThreads{run_threads, nullptr, 1});
    bool good = finite(alone);
    for (int n : {2, 3}) good &= alone == results(size, RtfThreads{run_threads, nullptr, n});
    good &= alone == results(size, RtfThreads{run_in_turn, nullptr, 2});
    if (good) continue;
    std::printf("wrong: T %ld B %ld H %ld\n", long(size.frames), long(size.batch), long(size.units));
    return 1;
  }
  std::puts("good");
  return 0;
}

// All results behind each other.
inline std::vector<float> joined(std::initializer_list<const std::vector<float>*> parts) {
  std::vector<float> all;
  for (const std::vector<float>* part : parts) all.insert(all.end(), part->begin(), part->end());
  return all;
}

// The same numbers at each call.
inline std::vector<float> random_array_again(int64_t size) {
  std::srand(1);
  return random_array(size);
}
