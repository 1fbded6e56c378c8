#include <algorithm>
#include <cmath>
#include <vector>

#include "../common/ragged.h"
#include "../common/vector.h"
#include "rules.h"

namespace rtf {
namespace {

constexpr int64_t kNumbersPerThread = 1 << 15;
constexpr int64_t kSquaresPerBlock = 1 << 12;
constexpr int64_t kScaledAtOnce = 1 << 11;
constexpr int64_t kMatrixPerBlock = 1 << 16;

// Some entries of the gradients times a factor. They are stored, so that the compiler does not make one operation of
// the product and what follows it.
class Scaled {
 public:
  explicit Scaled(float factor) : factor_(factor) {}

  const float* operator()(const float* __restrict g, int64_t n) {
    if (factor_ == 1.0f) return g;
    numbers_.resize(std::max<int64_t>(n, numbers_.size()));
    float* __restrict result = numbers_.data();
    for (int64_t i = 0; i < n; ++i) result[i] = g[i] * factor_;
    return result;
  }

 private:
  const float factor_;
  std::vector<float> numbers_;
};

float* from(float* slot, int64_t first) { return slot ? slot + first : nullptr; }

// Applies the rule of these numbers to n entries.
using Apply = void (*)(const float* numbers, int64_t n, float* w, const float* g, float* s0, float* s1, float* s2);

template <class Rule>
void apply(const float* numbers, int64_t n, float* __restrict w, const float* __restrict g, float* __restrict s0,
           float* __restrict s1, float* __restrict s2) {
  const Rule rule(numbers);
  for (int64_t i = 0; i < n; ++i) rule.step(i, w, g, s0, s1, s2);
}

// Not a template: only the loop over the entries is compiled for each rule.
void update_entries(Apply apply, const float* numbers, float factor, const RtfParameter* parameters, int64_t count,
                    const RtfThreads& threads) {
  int64_t total = 0;
  for (int64_t p = 0; p < count; ++p) total += parameters[p].size;
  const int64_t parts = std::min<int64_t>(threads.n_threads, std::max<int64_t>(1, total / kNumbersPerThread));
  run_tasks(threads, parts, [&](int64_t part) {
    const int64_t first = part * total / parts, last = (part + 1) * total / parts;
    Scaled scaled(factor);
    int64_t start = 0;  // of the parameter, among the entries of all
    for (int64_t p = 0; p < count && start < last; start += parameters[p++].size) {
      const RtfParameter& of = parameters[p];
      const int64_t begin = std::max(first, start) - start, end = std::min(last, start + of.size) - start;
      const int64_t step = factor == 1.0f ? end - begin : kScaledAtOnce;
      for (int64_t at = begin; at < end; at += step) {
        const int64_t n = std::min(step, end - at);
        apply(numbers, n, of.value + at, scaled(of.gradient + at, n), from(of.slots[0], at), from(of.slots[1], at),
              from(of.slots[2], at));
      }
    }
  });
}

template <class Rule>
void update(const float* numbers, float factor, const RtfParameter* parameters, int64_t count,
            const RtfThreads& threads) {
  update_entries(apply<Rule>, numbers, factor, parameters, count, threads);
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

// The sums of a rule over n entries of a parameter.
template <class Rule>
void sum(const Rule rule, int64_t n, const float* __restrict w, const float* __restrict g, float* __restrict m,
         float* __restrict v, double* sums) {
  float one[kSums] = {}, other[kSums] = {};
  strided(n, [&](int64_t i, int k) { rule.add(i, w, g, m, v, &one[k], &other[k]); });
  sums[0] = total(one), sums[1] = total(other);
}

template <class Rule>
void apply_factors(const Rule rule, int64_t n, float* __restrict w, const float* __restrict g, float* __restrict m,
                   float* __restrict v, const float* factors) {
  const float both[2] = {factors[0], factors[1]};  // a copy, which no store changes
  for (int64_t i = 0; i < n; ++i) rule.apply(i, w, g, m, v, both);
}

template <class Rule>
void update_by_sums(const float* numbers, float factor, const RtfParameter* parameters, int64_t count,
                    const RtfThreads& threads) {
  const Rule rule(numbers);
  Blocks blocks;
  for (int64_t p = 0; p < count; ++p) blocks.add(parameters[p].size, kSquaresPerBlock);
  std::vector<double> sums(2 * blocks.count());
  blocks.each(threads, [&](int64_t block, int64_t p, int64_t at, int64_t n) {
    const RtfParameter& of = parameters[p];
    Scaled scaled(factor);
    sum(rule, n, of.value + at, scaled(of.gradient + at, n), of.slots[0] + at, of.slots[1] + at, &sums[2 * block]);
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
    Scaled scaled(factor);
    apply_factors(rule, n, of.value + at, scaled(of.gradient + at, n), of.slots[0] + at, of.slots[1] + at,
                  &factors[2 * p]);
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

void update_adafactor(const float* numbers, float factor, const RtfParameter* parameters, int64_t count,
                      const RtfThreads& threads) {
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
    Scaled times_factor(factor);
    for (int64_t row = at; row < at + n; ++row) {
      const double sum = add_squares(of.columns, times_factor(of.gradient + row * of.columns, of.columns), nullptr,
                                     by_column[block].data());
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
    Scaled times_factor(factor);
    sums[block] = 0;
    for (int64_t row = at; row < at + n; ++row) {
      const float* g = times_factor(parameters[p].gradient + row * matrix.columns, matrix.columns);
      sums[block] += static_cast<double>(matrix.of_rows[row]) * matrix.of_rows[row] *
                     add_squares(matrix.columns, g, matrix.of_columns.data(), nullptr);
    }
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
    Scaled times_factor(factor);
    for (int64_t row = at; row < at + n; ++row) {
      float* __restrict w = parameters[p].value + row * matrix.columns;
      const float* __restrict g = times_factor(parameters[p].gradient + row * matrix.columns, matrix.columns);
      const float of_row = matrix.step * matrix.of_rows[row];
      for (int64_t i = 0; i < matrix.columns; ++i) w[i] -= of_row * of_columns[i] * g[i] + decay * w[i];
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

void rtf_update_f32(int rule, const float* numbers, const float* factor, const RtfParameter* parameters, int64_t count,
                    const RtfThreads* threads) {
  float all[kRtfMaxNumbers] = {};
  std::copy(numbers, numbers + rtf_update_numbers(rule), all);
  using Update = void (*)(const float*, float, const RtfParameter*, int64_t, const RtfThreads&);
  static const Update kUpdates[] = {rtf::update<rtf::Sgd>,          rtf::update<rtf::Momentum>,
                                    rtf::update<rtf::KerasSgd>,     rtf::update<rtf::Adam>,
                                    rtf::update<rtf::AmsGrad>,      rtf::update<rtf::NadamKeras>,
                                    rtf::update<rtf::RmsProp>,      rtf::update<rtf::CenteredRmsProp>,
                                    rtf::update<rtf::Adagrad>,      rtf::update<rtf::Adadelta>,
                                    rtf::update<rtf::RAdam>,        rtf::update<rtf::Lion>,
                                    rtf::update<rtf::ScheduleFree>, rtf::update<rtf::Average>,
                                    rtf::update_by_sums<rtf::Lamb>, rtf::update_by_sums<rtf::ScaledAdam>,
                                    rtf::update_adafactor};
  static_assert(sizeof(kUpdates) == RTF_RULES * sizeof(Update), "a rule is missing");
  kUpdates[rule](all, *factor, parameters, count, *threads);
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
