// What the drivers of the sanitizers share: threads, random arrays, and checks of results.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "common/parallel.h"
#if !RTF_CUDA_EMULATION  // kernels for GPUs have other tiles, of the same names
#include "common/tiles.h"
#endif

// Memory that ends at a guard page: sanitizers do not see what instructions for tiles read
// and write.
template <typename T>
struct BeforeGuard {
  using value_type = T;

  T* allocate(size_t n) {
    const size_t page = sysconf(_SC_PAGESIZE), size = pages(n * sizeof(T), page);
    void* memory = mmap(nullptr, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(static_cast<char*>(memory) + size, page, PROT_NONE) != 0)
      throw std::bad_alloc();
    return reinterpret_cast<T*>(static_cast<char*>(memory) + size - n * sizeof(T));
  }

  void deallocate(T* at, size_t n) {
    const size_t page = sysconf(_SC_PAGESIZE), size = pages(n * sizeof(T), page);
    munmap(reinterpret_cast<char*>(at + n) - size, size + page);
  }

  bool operator==(const BeforeGuard&) const { return true; }
  bool operator!=(const BeforeGuard&) const { return false; }

 private:
  static size_t pages(size_t bytes, size_t page) { return (bytes + page - 1) / page * page; }
};

#if defined(__SANITIZE_ADDRESS__)
using Array = std::vector<float>;  // it has guards of its own, on both sides
#else
using Array = std::vector<float, BeforeGuard<float>>;
#endif

// New threads for each call, so that a race between tasks shows.
inline void run_threads(void*, int64_t n_tasks, RtfTask task, void* arg) {
  std::vector<std::thread> threads;
  for (int64_t index = 0; index < n_tasks; ++index) threads.emplace_back(task, arg, index);
  for (std::thread& thread : threads) thread.join();
}

inline Array random_array(int64_t size, float scale = 1.0f) {
  Array x(size);
  for (float& value : x) value = scale * (std::rand() / float(RAND_MAX) - 0.5f);
  return x;
}

inline bool finite(const Array& x) {
  for (float value : x)
    if (!std::isfinite(value)) return false;
  return true;
}

// The tasks one after the other: nothing may wait for a task that has not begun.
inline void run_in_turn(void*, int64_t n_tasks, RtfTask task, void* arg) {
  for (int64_t index = 0; index < n_tasks; ++index) task(arg, index);
}

// Runs results(size, threads) of a recurrence over many sizes: all have to be finite, and the same for any threads. The
// large ones are those for which threads share the units of a few sequences.
template <typename Size, typename Results>
int check_recurrence(const Results& results) {
  std::vector<Size> sizes;
#if defined(__SANITIZE_THREAD__)  // it is 20 times slower, and who shares what depends on the size of the batch alone
  const int frames[] = {0, 2, 5}, units[] = {7, 64};
#else
  const int frames[] = {0, 1, 2, 5}, units[] = {1, 7, 16, 33, 64};
#endif
  for (int64_t T : frames)
    for (int64_t B : {0, 1, 3, 8, 13})
      for (int64_t H : units)
        for (int reverse : {0, 1}) sizes.push_back(Size{T, B, H, nullptr, reverse});
  for (int64_t B : {1, 3}) sizes.push_back(Size{250 / B, B, 130, nullptr, B > 1});
  sizes.push_back(Size{1, 4, 64, nullptr, 0});  // with weights as they are
  // rows that are dealt out, also on the tile unit
  for (const auto& [B, H] : {std::pair<int64_t, int64_t>{64, 96}, {100, 97}})
    sizes.push_back(Size{640 / B, B, H, nullptr, 1});
#if RTF_TILES  // in teams of two and three
  sizes.push_back(Size{40, 16, 256, nullptr, 0});
#if !defined(__SANITIZE_THREAD__)
  sizes.push_back(Size{16, 40, 384, nullptr, 1});
#endif
#endif
  for (Size& size : sizes) {
    std::vector<int32_t> lengths(size.batch);
    for (int64_t b = 0; b < size.batch; ++b) lengths[b] = b == 0 ? size.frames : std::rand() % (size.frames + 1);
    size.lengths = lengths.data();
    const Array alone = results(size, RtfThreads{run_threads, nullptr, 1});
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

// All results, concatenated.
inline Array joined(std::initializer_list<const Array*> parts) {
  Array all;
  for (const Array* part : parts) all.insert(all.end(), part->begin(), part->end());
  return all;
}

// results(size, scale of the recurrent weights, rounded, threads) of both forms of the products of a recurrence, for
// check_recurrence: those of rounded factors, where the CPU has them, are near those of floats, but not the same. With
// large weights, errors would grow from frame to frame.
template <typename Size, typename Results>
Array results_of_forms(const Size& size, bool rounds, const RtfThreads& threads, const Results& results) {
  Array floats = results(size, 1.0f, 0, threads);
  if (!rounds) return floats;
  const float scale = 2.0f / std::sqrt(static_cast<float>(size.units));
  const Array exact = results(size, scale, 0, threads), rounded = results(size, scale, 1, threads);
  double squares = 0;
  for (size_t i = 0; i < exact.size(); ++i) squares += std::pow((rounded[i] - exact[i]) / (1 + std::fabs(exact[i])), 2);
  const double error = std::sqrt(squares / std::max<size_t>(1, exact.size()));
  const bool differs = size.units < 16 || size.frames * size.batch < 16 || error > 1e-5;
  if (!differs || !(error < 0.02))
    std::printf("rounded products of T %ld B %ld H %ld differ by %g\n", long(size.frames), long(size.batch),
                long(size.units), error);
  floats.insert(floats.end(), rounded.begin(), rounded.end());
  return floats;
}

// The same numbers in each call.
inline Array random_array_again(int64_t size) {
  std::srand(1);
  return random_array(size);
}
