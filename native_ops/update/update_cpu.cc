#include <algorithm>
#include <cmath>
#include <vector>

#include "../common/ragged.h"
#include "../common/vector.h"
#include "update.h"

namespace rtf {
namespace {

constexpr int64_t kNumbersPerThread = 1 << 15;
constexpr int64_t kSquaresPerBlock = 1 << 12;

// Applies a rule to n entries. The formulas and the order of their operations are those of TensorFlow's kernels.
template <int kRule>
void apply(const float* numbers, int64_t n, float* __restrict w, const float* __restrict g, float* __restrict s0,
           float* __restrict s1, float* __restrict s2) {
  const float rate = numbers[0], a = numbers[1], b = numbers[2], c = numbers[3], d = numbers[4], e = numbers[5];
  if (kRule == RTF_SGD) {
    for (int64_t i = 0; i < n; ++i) w[i] -= g[i] * rate;
  } else if (kRule == RTF_MOMENTUM) {
    const float look_ahead = b != 0 ? rate : 0.0f, direct = b != 0 ? a * rate : rate;
    for (int64_t i = 0; i < n; ++i) {
      s0[i] = s0[i] * a + g[i];
      w[i] -= g[i] * look_ahead + s0[i] * direct;
    }
  } else if (kRule == RTF_KERAS_SGD) {
    const float look_ahead = b != 0 ? rate : 0.0f, direct = b != 0 ? a : 1.0f;
    for (int64_t i = 0; i < n; ++i) {
      s0[i] = s0[i] * a - g[i] * rate;
      w[i] += s0[i] * direct - g[i] * look_ahead;
    }
  } else if (kRule == RTF_ADAM) {
    const float alpha = rate * std::sqrt(1.0f - b) / (1.0f - a), epsilon = e, decay = rate * numbers[7];
    const float beta1 = c, rest1 = 1.0f - c, rest2 = 1.0f - d;
    const float of_g = numbers[6] != 0 ? rest1 : 0.0f, of_m = numbers[6] != 0 ? beta1 : 1.0f;
    for (int64_t i = 0; i < n; ++i) {
      s0[i] += (g[i] - s0[i]) * rest1;
      s1[i] += (g[i] * g[i] - s1[i]) * rest2;
      const float kept = decay != 0 ? w[i] - decay * w[i] : w[i];
      w[i] = kept - (g[i] * of_g + s0[i] * of_m) * alpha / (std::sqrt(s1[i]) + epsilon);
    }
  } else if (kRule == RTF_AMSGRAD) {
    const float alpha = rate * std::sqrt(1.0f - b) / (1.0f - a), rest1 = 1.0f - c, rest2 = 1.0f - d;
    for (int64_t i = 0; i < n; ++i) {
      s0[i] += (g[i] - s0[i]) * rest1;
      s1[i] += (g[i] * g[i] - s1[i]) * rest2;
      s2[i] = s1[i] > s2[i] ? s1[i] : s2[i];
      w[i] -= s0[i] * alpha / (std::sqrt(s2[i]) + e);
    }
  } else if (kRule == RTF_NADAM_KERAS) {
    const float of_m = a, of_v = b, beta1 = c, beta2 = d;
    for (int64_t i = 0; i < n; ++i) {
      s0[i] = beta1 * s0[i] + (1.0f - beta1) * g[i];
      s1[i] = beta2 * s1[i] + (1.0f - beta2) * (g[i] * g[i]);
      w[i] -= (rate * g[i] + of_m * s0[i]) / (std::sqrt(of_v * s1[i]) + e);
    }
  } else if (kRule == RTF_RMSPROP) {
    for (int64_t i = 0; i < n; ++i) {
      s0[i] += (g[i] * g[i] - s0[i]) * (1.0f - a);
      s1[i] = s1[i] * b + g[i] * rate / std::sqrt(c + s0[i]);
      w[i] -= s1[i];
    }
  } else if (kRule == RTF_RMSPROP_CENTERED) {
    for (int64_t i = 0; i < n; ++i) {
      s0[i] += (g[i] * g[i] - s0[i]) * (1.0f - a);
      s2[i] += (g[i] - s2[i]) * (1.0f - a);
      s1[i] = s1[i] * b + g[i] * rate / std::sqrt((s0[i] - s2[i] * s2[i]) + c);
      w[i] -= s1[i];
    }
  } else if (kRule == RTF_ADAGRAD) {
    for (int64_t i = 0; i < n; ++i) {
      s0[i] += g[i] * g[i];
      w[i] -= g[i] * rate / std::sqrt(s0[i]);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      s0[i] = s0[i] * a + g[i] * g[i] * (1.0f - a);
      const float change = std::sqrt(s1[i] + b) / std::sqrt(s0[i] + b) * g[i];
      s1[i] = s1[i] * a + change * change * (1.0f - a);
      w[i] -= change * rate;
    }
  }
}

template <int kRule>
void update(const float* numbers, const RtfParameter* parameters, int64_t count, const RtfThreads& threads) {
  int64_t total = 0;
  for (int64_t p = 0; p < count; ++p) total += parameters[p].size;
  const int64_t parts = std::min<int64_t>(threads.n_threads, std::max<int64_t>(1, total / kNumbersPerThread));
  run_tasks(threads, parts, [&](int64_t part) {
    const int64_t first = part * total / parts, last = (part + 1) * total / parts;
    int64_t start = 0;  // of the parameter, among the entries of all
    for (int64_t p = 0; p < count && start < last; start += parameters[p++].size) {
      const RtfParameter& of = parameters[p];
      const int64_t from = std::max(first, start) - start, to = std::min(last, start + of.size) - start;
      if (from >= to) continue;
      float* slots[kRtfMaxSlots];
      for (int i = 0; i < kRtfMaxSlots; ++i) slots[i] = of.slots[i] ? of.slots[i] + from : nullptr;
      apply<kRule>(numbers, to - from, of.value + from, of.gradient + from, slots[0], slots[1], slots[2]);
    }
  });
}

double squares(const float* x, int64_t n) {
  Vec sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int k = 0; k < 4; ++k) {
      const Vec v = load(x + i + k * kLanes);
      sums[k] += v * v;
    }
  float lanes[kLanes], rest = 0;
  store(lanes, (sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; ++i) rest += x[i] * x[i];
  double sum = rest;
  for (float lane : lanes) sum += lane;
  return sum;
}

}  // namespace
}  // namespace rtf

extern "C" {

int rtf_update_slots(int rule) {
  static const int kSlots[] = {0, 1, 1, 2, 3, 2, 2, 3, 1, 2};
  return kSlots[rule];
}

int rtf_update_numbers(int rule) {
  static const int kNumbers[] = {1, 3, 3, 8, 6, 6, 4, 4, 1, 3};
  return kNumbers[rule];
}

void rtf_update_f32(int rule, const float* numbers, const RtfParameter* parameters, int64_t count,
                    const RtfThreads* threads) {
  float all[kRtfMaxNumbers] = {};
  std::copy(numbers, numbers + rtf_update_numbers(rule), all);
  using Update = void (*)(const float*, const RtfParameter*, int64_t, const RtfThreads&);
  static const Update kUpdates[] = {rtf::update<RTF_SGD>,       rtf::update<RTF_MOMENTUM>,
                                    rtf::update<RTF_KERAS_SGD>, rtf::update<RTF_ADAM>,
                                    rtf::update<RTF_AMSGRAD>,   rtf::update<RTF_NADAM_KERAS>,
                                    rtf::update<RTF_RMSPROP>,   rtf::update<RTF_RMSPROP_CENTERED>,
                                    rtf::update<RTF_ADAGRAD>,   rtf::update<RTF_ADADELTA>};
  kUpdates[rule](all, parameters, count, *threads);
}

double rtf_sum_of_squares_f32(const float* const* arrays, const int64_t* sizes, int64_t count,
                              const RtfThreads* threads) {
  std::vector<int64_t> starts(1, 0);  // of the blocks of each array
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    starts.push_back(starts.back() + (sizes[i] + rtf::kSquaresPerBlock - 1) / rtf::kSquaresPerBlock);
    total += sizes[i];
  }
  const int64_t blocks = starts.back();
  const int64_t useful = std::max<int64_t>(1, total / rtf::kNumbersPerThread);
  const int64_t parts = std::min<int64_t>(threads->n_threads, useful);
  std::vector<double> sums(blocks);
  rtf::run_tasks(*threads, parts, [&](int64_t part) {
    const int64_t first = part * blocks / parts, last = (part + 1) * blocks / parts;
    int64_t array = std::upper_bound(starts.begin(), starts.end(), first) - starts.begin() - 1;
    for (int64_t block = first; block < last; ++block) {
      while (block >= starts[array + 1]) ++array;
      const int64_t at = (block - starts[array]) * rtf::kSquaresPerBlock;
      sums[block] = rtf::squares(arrays[array] + at, std::min(rtf::kSquaresPerBlock, sizes[array] - at));
    }
  });
  double sum = 0;
  for (double of_block : sums) sum += of_block;
  return sum;
}
}
