// The kernels of the LSTM by themselves, of floats and of factors rounded to bfloat16, on arrays as training has them:
// gates take the place of their input, and their gradients that of the gates. GFLOP/s of forward and backward, medians,
// with one thread and with two.
//
//   g++ -std=c++17 -O3 -march=native -fno-math-errno -Inative_ops bench/lstm_kernel.cc native_ops/lstm/lstm_cpu.cc
//   (with -pthread -o kernel), then ./kernel [rounds]
//
// With -mno-amx-tile: the vectors of a CPU without a tile unit.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "lstm/lstm.h"

namespace {

// One thread besides the caller, which waits for work.
class Pool {
 public:
  Pool() : thread_([this] { serve(); }) {}

  ~Pool() {
    post(nullptr, nullptr, 0);
    thread_.join();
  }

  static void run(void* pool, int64_t n_tasks, RtfTask task, void* arg) {
    Pool& self = *static_cast<Pool*>(pool);
    self.post(task, arg, n_tasks);
    self.work();
    while (self.busy_.load()) std::this_thread::yield();
  }

 private:
  void post(RtfTask task, void* arg, int64_t n_tasks) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      task_ = task, arg_ = arg, n_tasks_ = n_tasks, next_ = 0, busy_ = true;
      ++posted_;
    }
    changed_.notify_one();
  }

  void work() {
    for (int64_t index; (index = next_++) < n_tasks_;) task_(arg_, index);
  }

  void serve() {
    for (int seen = 0;;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return posted_ != seen; });
        seen = posted_;
      }
      if (!task_) return;
      work();
      busy_ = false;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  RtfTask task_ = nullptr;
  void* arg_ = nullptr;
  int64_t n_tasks_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> busy_{false};
  int posted_ = 0;
  std::thread thread_;
};

void run_alone(void*, int64_t n_tasks, RtfTask task, void* arg) {
  for (int64_t index = 0; index < n_tasks; ++index) task(arg, index);
}

std::vector<float> random_array(int64_t size, float scale) {
  std::vector<float> x(size);
  for (float& value : x) value = scale * (std::rand() / float(RAND_MAX) - 0.5f);
  return x;
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void measure(const RtfLstmShape& shape, int rounded, const RtfThreads& threads, int rounds) {
  const int64_t T = shape.frames, B = shape.batch, H = shape.units;
  const std::vector<float> z = random_array(T * B * 4 * H, 2), r = random_array(H * 4 * H, 0.1f),
                           state = random_array(B * H, 1);
  const std::vector<float> dh = random_array(T * B * H, 1);
  std::vector<float> h(T * B * H), c(T * B * H), c_last(B * H), h_last(B * H), dc0(B * H), dh0(B * H);
  std::vector<float> scratch(rtf_lstm_scratch_size(&shape, rounded));
  std::vector<double> forward, backward;
  for (int round = 0; round < rounds; ++round) {
    std::vector<float> gates = z;
    const double begin = seconds();
    rtf_lstm_forward_f32(&shape, rounded, gates.data(), r.data(), state.data(), state.data(), h.data(), c.data(),
                         gates.data(), c_last.data(), h_last.data(), scratch.data(), &threads);
    const double between = seconds();
    rtf_lstm_backward_f32(&shape, rounded, r.data(), state.data(), c.data(), gates.data(), dh.data(), c_last.data(),
                          h_last.data(), gates.data(), dc0.data(), dh0.data(), scratch.data(), &threads);
    forward.push_back(between - begin);
    backward.push_back(seconds() - between);
  }
  const double gflop = 8e-9 * T * B * H * H, there = median(forward), back = median(backward);
  std::printf("%2ld x %4ld, %s, %d threads: forward %7.2f ms, backward %7.2f ms, GFLOP/s %4.0f %4.0f, both %4.0f\n",
              long(B), long(H), rounded ? "bfloat16" : "float", threads.n_threads, 1e3 * there, 1e3 * back,
              gflop / there, gflop / back, 2 * gflop / (there + back));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  Pool pool;
  for (int64_t H : {320, 512, 1024})
    for (int64_t B : {32, 64}) {
      const RtfLstmShape shape{50, B, H, nullptr, 0};
      for (int rounded = 0; rounded <= rtf_lstm_rounds(); ++rounded) {
        measure(shape, rounded, RtfThreads{run_alone, nullptr, 1}, rounds);
        measure(shape, rounded, RtfThreads{Pool::run, &pool, 2}, rounds);
      }
    }
}
