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
constexpr int64_t kMatrixPerBlock = 1 << 16;

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
  } else if (kRule == RTF_RADAM) {
    const float rest1 = 1.0f - d, rest2 = 1.0f - e, epsilon = numbers[6], decay = numbers[7];
    const float of_root = c != 0 ? 1.0f : 0.0f, instead = c != 0 ? epsilon : 1.0f;
    for (int64_t i = 0; i < n; ++i) {
      s0[i] += (g[i] - s0[i]) * rest1;
      s1[i] += (g[i] * g[i] - s1[i]) * rest2;
      w[i] -= rate * (a * s0[i] / (std::sqrt(b * s1[i]) * of_root + instead) + decay * w[i]);
    }
  } else if (kRule == RTF_LION) {
    const float rest1 = 1.0f - a, rest2 = 1.0f - b, decay = c;
    for (int64_t i = 0; i < n; ++i) {
      const float mixed = s0[i] + rest1 * (g[i] - s0[i]);
      // NaN stays NaN
      const float sign = mixed > 0 ? 1.0f : mixed < 0 ? -1.0f : mixed;
      w[i] -= rate * (sign + decay * w[i]);
      s0[i] += rest2 * (g[i] - s0[i]);
    }
  } else if (kRule == RTF_SCHEDULE_FREE) {
    const float kept = 1.0f - a, beta1 = c, rest2 = 1.0f - d, decay = numbers[6];
    for (int64_t i = 0; i < n; ++i) {
      s1[i] += (g[i] * g[i] - s1[i]) * rest2;
      const float step = rate * (g[i] / (std::sqrt(b * s1[i]) + e) + decay * w[i]);
      const float after = kept * (s0[i] - beta1 * step);
      w[i] += s0[i] - step - after;
      s0[i] = after;
    }
  } else if (kRule == RTF_AVERAGE) {
    for (int64_t i = 0; i < n; ++i) w[i] += (g[i] - w[i]) * rate;
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
      float* slots[3];
      for (int i = 0; i < 3; ++i) slots[i] = of.slots[i] ? of.slots[i] + from : nullptr;
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

// The blocks of all parameters, so that sums over the entries of each do not depend on the number of threads.
class Blocks {
 public:
  // n items, so many of them in a block, each of so many entries.
  void add(int64_t n, int64_t per_block, int64_t entries = 1) {
    sizes_.push_back(n);
    per_block_.push_back(per_block);
    starts_.push_back(starts_.back() + (n + per_block - 1) / per_block);
    total_ += n * entries;
  }

  int64_t count() const { return starts_.back(); }
  int64_t first(int64_t array) const { return starts_[array]; }

  // Calls run(block, array, its first item there, number of items) for each, by several threads.
  template <class Run>
  void each(const RtfThreads& threads, const Run& run) const {
    const int64_t useful = std::max<int64_t>(1, total_ / kNumbersPerThread);
    const int64_t parts = std::min<int64_t>(threads.n_threads, useful);
    run_tasks(threads, parts, [&](int64_t part) {
      const int64_t first = part * count() / parts, last = (part + 1) * count() / parts;
      int64_t array = std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1;
      for (int64_t block = first; block < last; ++block) {
        while (block >= starts_[array + 1]) ++array;
        const int64_t per_block = per_block_[array], at = (block - starts_[array]) * per_block;
        run(block, array, at, std::min(per_block, sizes_[array] - at));
      }
    });
  }

 private:
  int64_t total_ = 0;
  std::vector<int64_t> sizes_, per_block_, starts_ = std::vector<int64_t>(1, 0);
};

constexpr int kSums = 8;  // running at a time, so that the loops become vector instructions

double total(const float* sums) {
  double result = 0;
  for (int k = 0; k < kSums; ++k) result += sums[k];
  return result;
}

// Calls entry(i, k) for all entries, with k the running sum that it adds to.
template <class Entry>
inline void strided(int64_t n, const Entry& entry) {
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums)
    for (int k = 0; k < kSums; ++k) entry(i + k, k);
  for (; i < n; ++i) entry(i, 0);
}

// Rules with sums over the entries of a parameter: what `sum` adds up by block, `factors` makes two numbers of for each
// parameter, and `apply` takes.
struct Lamb {
  const float* numbers;
  float rate = numbers[0], of_m = numbers[1], of_v = numbers[2], rest1 = 1.0f - numbers[3], rest2 = 1.0f - numbers[4];
  float epsilon = numbers[5], decay = numbers[6];

  explicit Lamb(const float* numbers) : numbers(numbers) {}

  float direction(float w, float m, float v) const { return of_m * m / (std::sqrt(of_v * v) + epsilon) + decay * w; }

  // The squares of the weights and of the direction.
  void sum(int64_t n, const float* __restrict w, const float* __restrict g, float* __restrict m, float* __restrict v,
           double* sums) const {
    float weights[kSums] = {}, directions[kSums] = {};
    strided(n, [&](int64_t i, int k) {
      m[i] += (g[i] - m[i]) * rest1;
      v[i] += (g[i] * g[i] - v[i]) * rest2;
      const float u = direction(w[i], m[i], v[i]);
      weights[k] += w[i] * w[i];
      directions[k] += u * u;
    });
    sums[0] = total(weights), sums[1] = total(directions);
  }

  void factors(const RtfParameter&, const double* sums, float* result) const {
    const float ratio = static_cast<float>(std::sqrt(sums[0]) / std::sqrt(sums[1]));
    result[0] = rate * (sums[0] > 0 && sums[1] > 0 ? ratio : 1.0f);
  }

  void apply(int64_t n, float* __restrict w, const float*, float* __restrict m, float* __restrict v,
             const float* factors) const {
    const float step = factors[0];
    for (int64_t i = 0; i < n; ++i) w[i] -= step * direction(w[i], m[i], v[i]);
  }
};

struct ScaledAdam {
  const float* numbers;
  float rate = numbers[0], rest1 = 1.0f - numbers[1], rest2 = 1.0f - numbers[2], epsilon = numbers[3];
  float scale_rate = numbers[4], least = numbers[5];

  explicit ScaledAdam(const float* numbers) : numbers(numbers) {}

  // The squares of the weights, and the gradient of the logarithm of their scale.
  void sum(int64_t n, const float* __restrict w, const float* __restrict g, float*, float*, double* sums) const {
    float weights[kSums] = {}, slopes[kSums] = {};
    strided(n, [&](int64_t i, int k) {
      weights[k] += w[i] * w[i];
      slopes[k] += g[i] * w[i];
    });
    sums[0] = total(weights), sums[1] = total(slopes);
  }

  void factors(const RtfParameter& of, const double* sums, float* result) const {
    if (!of.size) return;
    const float slope = static_cast<float>(sums[1]);
    float &m = *of.slots[2], &v = *of.slots[3];
    m += (slope - m) * rest1;
    v += (slope * slope - v) * rest2;
    const float scale = static_cast<float>(std::sqrt(sums[0] / of.size));
    result[0] = rate * (of.size == 1 ? scale_rate : std::max(scale, least));
    result[1] = of.size == 1 ? 0.0f : rate * scale_rate * m / (std::sqrt(v) + epsilon);
  }

  void apply(int64_t n, float* __restrict w, const float* __restrict g, float* __restrict m, float* __restrict v,
             const float* factors) const {
    const float step = factors[0], of_scale = factors[1];
    for (int64_t i = 0; i < n; ++i) {
      m[i] += (g[i] - m[i]) * rest1;
      v[i] += (g[i] * g[i] - v[i]) * rest2;
      w[i] -= step * m[i] / (std::sqrt(v[i]) + epsilon) + of_scale * w[i];
    }
  }
};

template <class Rule>
void update_by_sums(const float* numbers, const RtfParameter* parameters, int64_t count, const RtfThreads& threads) {
  const Rule rule(numbers);
  Blocks blocks;
  for (int64_t p = 0; p < count; ++p) blocks.add(parameters[p].size, kSquaresPerBlock);
  std::vector<double> sums(2 * blocks.count());
  blocks.each(threads, [&](int64_t block, int64_t p, int64_t at, int64_t n) {
    const RtfParameter& of = parameters[p];
    rule.sum(n, of.value + at, of.gradient + at, of.slots[0] + at, of.slots[1] + at, &sums[2 * block]);
  });
  std::vector<float> factors(2 * count);
  for (int64_t p = 0; p < count; ++p) {
    double of_all[2] = {};
    for (int64_t block = blocks.first(p); block < blocks.first(p + 1); ++block)
      for (int i : {0, 1}) of_all[i] += sums[2 * block + i];
    rule.factors(parameters[p], of_all, &factors[2 * p]);
  }
  blocks.each(threads, [&](int64_t, int64_t p, int64_t at, int64_t n) {
    const RtfParameter& of = parameters[p];
    rule.apply(n, of.value + at, of.gradient + at, of.slots[0] + at, of.slots[1] + at, &factors[2 * p]);
  });
}

// The sum of the squares of n products; each square is added to squares[i], too, if there are any.
double add_squares(int64_t n, const float* __restrict x, const float* __restrict factors, float* __restrict squares) {
  float sums[kSums] = {};
  if (factors) {
    strided(n, [&](int64_t i, int k) { sums[k] += x[i] * factors[i] * (x[i] * factors[i]); });
  } else {
    strided(n, [&](int64_t i, int k) {
      squares[i] += x[i] * x[i];
      sums[k] += x[i] * x[i];
    });
  }
  return total(sums);
}

void update_adafactor(const float* numbers, const RtfParameter* parameters, int64_t count, const RtfThreads& threads) {
  const float rate = numbers[0], weight = numbers[1], epsilon1 = numbers[2], epsilon2 = numbers[3];
  const float threshold = numbers[4], scaled = numbers[5], decay = rate * numbers[6];
  struct Matrix {
    int64_t rows, columns;
    std::vector<float> of_rows, of_columns;  // factors of the gradient
    float step;
  };
  std::vector<Matrix> matrices(count);
  Blocks blocks;
  for (int64_t p = 0; p < count; ++p) {
    const int64_t columns = parameters[p].columns, rows = columns ? parameters[p].size / columns : 0;
    matrices[p] = {rows, columns, std::vector<float>(rows), std::vector<float>(columns), 0};
    blocks.add(rows, std::max<int64_t>(1, kMatrixPerBlock / std::max<int64_t>(1, columns)), columns);
  }
  std::vector<std::vector<float>> by_column(blocks.count());
  std::vector<double> sums(blocks.count());
  blocks.each(threads, [&](int64_t block, int64_t p, int64_t at, int64_t n) {
    const RtfParameter& of = parameters[p];
    by_column[block].assign(of.columns, 0.0f);
    for (int64_t row = at; row < at + n; ++row) {
      const double sum = add_squares(of.columns, of.gradient + row * of.columns, nullptr, by_column[block].data());
      float& mean = of.slots[0][row];
      mean += weight * (static_cast<float>(sum / of.columns) + epsilon1 - mean);
    }
    sums[block] = scaled != 0 ? squares(of.value + at * of.columns, n * of.columns) : 0;
  });
  for (int64_t p = 0; p < count; ++p) {
    Matrix& matrix = matrices[p];
    if (!matrix.rows) continue;
    std::vector<float>& of_columns = matrix.of_columns;
    double size = 0, mean_row = 0;
    for (int64_t block = blocks.first(p); block < blocks.first(p + 1); ++block) {
      for (int64_t i = 0; i < matrix.columns; ++i) of_columns[i] += by_column[block][i];
      size += sums[block];
    }
    for (int64_t i = 0; i < matrix.columns; ++i) {
      float& mean = parameters[p].slots[1][i];
      mean += weight * (of_columns[i] / matrix.rows + epsilon1 - mean);
      of_columns[i] = 1.0f / std::sqrt(mean);
    }
    for (int64_t i = 0; i < matrix.rows; ++i) mean_row += parameters[p].slots[0][i];
    mean_row /= matrix.rows;
    for (int64_t i = 0; i < matrix.rows; ++i)
      matrix.of_rows[i] = std::sqrt(static_cast<float>(mean_row) / parameters[p].slots[0][i]);
    const float rms = static_cast<float>(std::sqrt(size / parameters[p].size));
    matrix.step = rate * (scaled != 0 ? std::max(rms, epsilon2) : 1.0f);
  }
  blocks.each(threads, [&](int64_t block, int64_t p, int64_t at, int64_t n) {
    const Matrix& matrix = matrices[p];
    sums[block] = 0;
    for (int64_t row = at; row < at + n; ++row)
      sums[block] +=
          static_cast<double>(matrix.of_rows[row]) * matrix.of_rows[row] *
          add_squares(matrix.columns, parameters[p].gradient + row * matrix.columns, matrix.of_columns.data(), nullptr);
  });
  for (int64_t p = 0; p < count; ++p) {
    double sum = 0;
    for (int64_t block = blocks.first(p); block < blocks.first(p + 1); ++block) sum += sums[block];
    if (matrices[p].rows)
      matrices[p].step /= std::max(static_cast<float>(std::sqrt(sum / parameters[p].size)) / threshold, 1.0f);
  }
  blocks.each(threads, [&](int64_t, int64_t p, int64_t at, int64_t n) {
    const Matrix& matrix = matrices[p];
    const float* __restrict of_columns = matrix.of_columns.data();
    for (int64_t row = at; row < at + n; ++row) {
      float* __restrict w = parameters[p].value + row * matrix.columns;
      const float* __restrict g = parameters[p].gradient + row * matrix.columns;
      const float factor = matrix.step * matrix.of_rows[row];
      for (int64_t i = 0; i < matrix.columns; ++i) w[i] -= factor * of_columns[i] * g[i] + decay * w[i];
    }
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

int rtf_update_slots(int rule) {
  static const int kSlots[] = {0, 1, 1, 2, 3, 2, 2, 3, 1, 2, 2, 1, 2, 0, 2, 4, 2};
  static_assert(sizeof(kSlots) == RTF_RULES * sizeof(int), "a rule is missing");
  return kSlots[rule];
}

int rtf_update_numbers(int rule) {
  static const int kNumbers[] = {1, 3, 3, 8, 6, 6, 4, 4, 1, 3, 8, 4, 7, 1, 7, 6, 7};
  static_assert(sizeof(kNumbers) == RTF_RULES * sizeof(int), "a rule is missing");
  return kNumbers[rule];
}

void rtf_update_f32(int rule, const float* numbers, const RtfParameter* parameters, int64_t count,
                    const RtfThreads* threads) {
  float all[kRtfMaxNumbers] = {};
  std::copy(numbers, numbers + rtf_update_numbers(rule), all);
  using Update = void (*)(const float*, const RtfParameter*, int64_t, const RtfThreads&);
  static const Update kUpdates[] = {rtf::update<RTF_SGD>,           rtf::update<RTF_MOMENTUM>,
                                    rtf::update<RTF_KERAS_SGD>,     rtf::update<RTF_ADAM>,
                                    rtf::update<RTF_AMSGRAD>,       rtf::update<RTF_NADAM_KERAS>,
                                    rtf::update<RTF_RMSPROP>,       rtf::update<RTF_RMSPROP_CENTERED>,
                                    rtf::update<RTF_ADAGRAD>,       rtf::update<RTF_ADADELTA>,
                                    rtf::update<RTF_RADAM>,         rtf::update<RTF_LION>,
                                    rtf::update<RTF_SCHEDULE_FREE>, rtf::update<RTF_AVERAGE>,
                                    rtf::update_by_sums<rtf::Lamb>, rtf::update_by_sums<rtf::ScaledAdam>,
                                    rtf::update_adafactor};
  static_assert(sizeof(kUpdates) == RTF_RULES * sizeof(Update), "a rule is missing");
  kUpdates[rule](all, parameters, count, *threads);
}

double rtf_sum_of_squares_f32(const float* const* arrays, const int64_t* sizes, int64_t count,
                              const RtfThreads* threads) {
  rtf::Blocks blocks;
  for (int64_t i = 0; i < count; ++i) blocks.add(sizes[i], rtf::kSquaresPerBlock);
  std::vector<double> sums(blocks.count());
  blocks.each(*threads,
              [&](int64_t block, int64_t i, int64_t at, int64_t n) { sums[block] = rtf::squares(arrays[i] + at, n); });
  double sum = 0;
  for (double of_block : sums) sum += of_block;
  return sum;
}
}
