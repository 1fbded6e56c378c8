// Threads that share each step of a recurrence: for batches with fewer sequences than threads.
//
// A step has one part per member, always the same one, so that its share of the weights stays in the member's own
// cache. All parts of a step are done before the next step begins. The first thread to arrive leads. If a member has
// not arrived when the leader finishes its own part, the leader does that part as well: threads wait only for parts
// that have been started, never for a thread that is not running. Tasks may therefore also run one after the other.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rtf {

// Number of recurrences running in this process. Two directions of a network, for instance, share the threads: larger
// teams would only make their members wait for each other.
class Running {
 public:
  Running() { number().fetch_add(1, std::memory_order_relaxed); }
  ~Running() { number().fetch_sub(1, std::memory_order_relaxed); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  static int count() { return number().load(std::memory_order_relaxed); }

 private:
  static std::atomic<int>& number() {
    static std::atomic<int> running{0};
    return running;
  }
};

// Spins for a short while, then yields.
class Patience {
 public:
  void wait() {
    if (++spins_ > kSpins) return std::this_thread::yield();
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

 private:
  static constexpr int kSpins = 2000;
  int spins_ = 0;
};

class Team {
 public:
  // n_threads: number of threads of all teams in the process.
  Team(int64_t size, int64_t n_threads) : members_(size), n_threads_(n_threads) {}

  // Called by each task; calls part(step, member, size) for steps 0 .. n_steps - 1 and members 0 .. size - 1 of a team,
  // which may shrink.
  template <typename Part>
  void join(int64_t n_steps, const Part& part) {
    const int64_t member = n_arrived_.fetch_add(1);
    if (member == 0)
      lead(n_steps, part);
    else
      follow(member, part);
  }

  static constexpr int64_t kMaxSize = 255;

 private:
  using Clock = std::chrono::steady_clock;

  // A team does not work well with a scheduler that preempts its members. A wait counts as long from this duration on,
  // if it also exceeds the time of the leader's own part.
  static constexpr int kMaxLongWaits = 4;
  static constexpr std::chrono::microseconds kLongWait{100};

  struct alignas(64) Member {
    std::atomic<int64_t> claimed{-1}, done{-1};  // the last step claimed by anyone, or done by the member
  };

  // A step and the team size in it, packed into one number.
  static int64_t order(int64_t step, int64_t size) { return (step << 8) + size; }
  static int64_t step_of(int64_t order) { return order >> 8; }
  static int64_t size_of(int64_t order) { return order & kMaxSize; }

  template <typename Part>
  void lead(int64_t n_steps, const Part& part) {
    int64_t size = members_.size();
    for (int64_t step = 0; step < n_steps; ++step) {
      size = std::min(size, std::max<int64_t>(1, n_threads_ / Running::count()));
      if (long_waits_ >= kMaxLongWaits) {
        size = (size + 1) / 2;
        long_waits_ = 0;
      }
      if (members_.size() > 1) posted_.store(order(step, size), std::memory_order_release);
      const Clock::time_point begin = Clock::now();
      part(step, 0, size);
      const Clock::duration own = Clock::now() - begin;
      for (int64_t member = 1; member < size; ++member) {
        if (claim(member, step))
          part(step, member, size);
        else
          wait_for(member, step, std::max<Clock::duration>(own, kLongWait));
      }
    }
    posted_.store(order(n_steps, 0), std::memory_order_release);
  }

  template <typename Part>
  void follow(int64_t member, const Part& part) {
    for (int64_t last = -1;;) {
      int64_t now = posted_.load(std::memory_order_acquire);
      for (Patience patience; now == last; now = posted_.load(std::memory_order_acquire)) patience.wait();
      if (now >= 0 && member >= size_of(now)) return;  // the team has shrunk, or is done
      last = now;
      if (now < 0 || !claim(member, step_of(now))) continue;
      part(step_of(now), member, size_of(now));
      members_[member].done.store(step_of(now), std::memory_order_release);
    }
  }

  bool claim(int64_t member, int64_t step) {
    int64_t before = step - 1;
    return members_[member].claimed.compare_exchange_strong(before, step, std::memory_order_acq_rel);
  }

  void wait_for(int64_t member, int64_t step, Clock::duration too_long) {
    const Clock::time_point begin = Clock::now();
    for (Patience patience; members_[member].done.load(std::memory_order_acquire) != step;) patience.wait();
    long_waits_ += Clock::now() - begin > too_long;
  }

  std::vector<Member> members_;
  const int64_t n_threads_;
  alignas(64) std::atomic<int64_t> posted_{-1};
  alignas(64) std::atomic<int64_t> n_arrived_{0};
  int long_waits_ = 0;
};

}  // namespace rtf
