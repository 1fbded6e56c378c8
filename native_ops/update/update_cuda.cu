// Updates of all parameters on the GPU, and the norm of all gradients. A launch has a table of parameters among its
// arguments, so that nothing is copied, and blocks for some entries of each. Sums are made by block and added in the
// order of the blocks.
#include <utility>

#include "../common/cuda/sums.h"
#include "rules.h"

namespace rtf {
namespace {

constexpr int kThreads = 256;
constexpr int kPerBlock = 4096;  // entries
constexpr int kPerTable = 40;    // parameters: arguments of a kernel have at most 4 KB

struct Entry {
  RtfParameter of;
  int64_t first;  // block of the launch
  float* scratch;
};

struct Table {
  int count;
  Entry entries[kPerTable];
};

// The part of a parameter that a block has: `n` items from item `at` on.
struct Part {
  int p;
  int64_t block, at, n;  // block: among those of the parameter

  __device__ __forceinline__ Part(const Table& table, int64_t items_of_block, bool rows) : p(0) {
    while (p + 1 < table.count && table.entries[p + 1].first <= blockIdx.x) ++p;
    const RtfParameter& of = table.entries[p].of;
    const int64_t items = rows ? of.size / of.columns : of.size;
    block = blockIdx.x - table.entries[p].first;
    at = block * items_of_block;
    n = items - at < items_of_block ? items - at : items_of_block;
  }
};

// Calls function(entry) for the entries of this thread.
template <typename Function>
__device__ __forceinline__ void each(const Part& part, const Function& function) {
  for (int64_t i = part.at + threadIdx.x; i < part.at + part.n; i += kThreads) function(i);
}

// A gradient times the factor of all, rounded, also if the rule adds something to the product.
__device__ __forceinline__ float scaled(float gradient, const float* factor) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(gradient, *factor);
#else
  return gradient * *factor;
#endif
}

__device__ __forceinline__ float* from(float* slot, int64_t first) { return slot ? slot + first : nullptr; }

// The sum over all threads of what each of them has of the numbers from[0 .. count - 1], in each thread.
__device__ double sum_of_parts(const float* from, int64_t count, int64_t stride, double* shared) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += from[i * stride];
  shared[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  sum = shared[0];
  __syncthreads();  // before the next sum
  return sum;
}

template <class Rule>
__global__ void update(__grid_constant__ const Table table, const float* numbers, const float* factor) {
  const Part part(table, kPerBlock, false);
  const RtfParameter& of = table.entries[part.p].of;
  const Rule rule(numbers);
  each(part, [&](int64_t i) {
    const float g = scaled(of.gradient[i], factor);
    rule.step(0, of.value + i, &g, from(of.slots[0], i), from(of.slots[1], i), from(of.slots[2], i));
  });
}

// scratch of a parameter: two factors, then two sums for each block.
template <class Rule>
__global__ void add_entries(__grid_constant__ const Table table, const float* numbers, const float* factor) {
  const Part part(table, kPerBlock, false);
  const Entry& entry = table.entries[part.p];
  const RtfParameter& of = entry.of;
  const Rule rule(numbers);
  float one = 0.0f, other = 0.0f;
  each(part, [&](int64_t i) {
    const float g = scaled(of.gradient[i], factor);
    rule.add(0, of.value + i, &g, of.slots[0] + i, of.slots[1] + i, &one, &other);
  });
  one = team_sum<kThreads>(one, dynamic_shared<float>());
  other = team_sum<kThreads>(other, dynamic_shared<float>());
  if (threadIdx.x > 0) return;
  entry.scratch[2 + 2 * part.block] = one;
  entry.scratch[3 + 2 * part.block] = other;
}

// A block for each parameter.
template <class Rule>
__global__ void make_factors(__grid_constant__ const Table table, const float* numbers, const float* factor) {
  const Entry& entry = table.entries[blockIdx.x];
  const int64_t blocks = (entry.of.size + kPerBlock - 1) / kPerBlock;
  double sums[2];
  for (int i = 0; i < 2; ++i) sums[i] = sum_of_parts(entry.scratch + 2 + i, blocks, 2, dynamic_shared<double>());
  if (threadIdx.x == 0) Rule(numbers).factors(entry.of, sums, entry.scratch);
}

template <class Rule>
__global__ void apply_factors(__grid_constant__ const Table table, const float* numbers, const float* factor) {
  const Part part(table, kPerBlock, false);
  const Entry& entry = table.entries[part.p];
  const RtfParameter& of = entry.of;
  const Rule rule(numbers);
  const float factors[2] = {entry.scratch[0], entry.scratch[1]};
  each(part, [&](int64_t i) {
    const float g = scaled(of.gradient[i], factor);
    rule.apply(0, of.value + i, &g, of.slots[0] + i, of.slots[1] + i, factors);
  });
}

// Adafactor: a block has kRows rows of a matrix. Its scratch: the mean of all means of rows, and the step; two sums for
// each block; factors of columns; sums of squares of columns for each block.
constexpr int kRows = 64;

struct Adafactor {
  float rate, weight, epsilon1, epsilon2, threshold, scaled, decay;

  __device__ __forceinline__ explicit Adafactor(const float* n)
      : rate(n[0]), weight(n[1]), epsilon1(n[2]), epsilon2(n[3]), threshold(n[4]), scaled(n[5]), decay(n[0] * n[6]) {}
};

struct Matrix {
  int64_t rows, columns, blocks;
  float *mean_row, *step, *sums, *of_columns, *by_column;

  __device__ __forceinline__ explicit Matrix(const Entry& entry)
      : rows(entry.of.size / entry.of.columns),
        columns(entry.of.columns),
        blocks((rows + kRows - 1) / kRows),
        mean_row(entry.scratch),
        step(entry.scratch + 1),
        sums(entry.scratch + 2),
        of_columns(sums + blocks),
        by_column(of_columns + columns) {}
};

// The means of rows, the sums of columns and the squares of the weights.
__global__ void add_squares(__grid_constant__ const Table table, const float* numbers, const float* factor) {
  const Part part(table, kRows, true);
  const Entry& entry = table.entries[part.p];
  const Adafactor rule(numbers);
  const Matrix matrix(entry);
  const RtfParameter& of = entry.of;
  float weights = 0.0f;
  for (int64_t row = part.at + threadIdx.x / kWarp; row < part.at + part.n; row += kThreads / kWarp) {
    float squares = 0.0f;
    for (int64_t u = threadIdx.x % kWarp; u < matrix.columns; u += kWarp) {
      const float g = scaled(of.gradient[row * matrix.columns + u], factor), w = of.value[row * matrix.columns + u];
      squares += g * g;
      weights += w * w;
    }
    squares = warp_sum(squares);
    float& mean = of.slots[0][row];
    if (threadIdx.x % kWarp == 0)
      mean += rule.weight * (squares / static_cast<float>(matrix.columns) + rule.epsilon1 - mean);
  }
  weights = team_sum<kThreads>(weights, dynamic_shared<float>());
  if (threadIdx.x == 0) matrix.sums[part.block] = weights;
  for (int64_t u = threadIdx.x; u < matrix.columns; u += kThreads) {
    float squares = 0.0f;
    for (int64_t row = part.at; row < part.at + part.n; ++row) {
      const float g = scaled(of.gradient[row * matrix.columns + u], factor);
      squares += g * g;
    }
    matrix.by_column[part.block * matrix.columns + u] = squares;
  }
}

// The means of columns, the mean of the means of rows, and the step before clipping. A block for each parameter.
__global__ void make_columns(__grid_constant__ const Table table, const float* numbers, const float* factor) {
  const Entry& entry = table.entries[blockIdx.x];
  const Adafactor rule(numbers);
  const Matrix matrix(entry);
  double* shared = dynamic_shared<double>();
  for (int64_t u = threadIdx.x; u < matrix.columns; u += kThreads) {
    float sum = 0.0f;
    for (int64_t block = 0; block < matrix.blocks; ++block) sum += matrix.by_column[block * matrix.columns + u];
    float& mean = entry.of.slots[1][u];
    mean += rule.weight * (sum / static_cast<float>(matrix.rows) + rule.epsilon1 - mean);
    matrix.of_columns[u] = 1.0f / sqrtf(mean);
  }
  const double of_rows = sum_of_parts(entry.of.slots[0], matrix.rows, 1, shared);
  const double weights = sum_of_parts(matrix.sums, matrix.blocks, 1, shared);
  if (threadIdx.x > 0) return;
  const float rms = static_cast<float>(sqrt(weights / static_cast<double>(entry.of.size)));
  *matrix.mean_row = static_cast<float>(of_rows / static_cast<double>(matrix.rows));
  *matrix.step = rule.rate * (rule.scaled == 0 ? 1.0f : rms < rule.epsilon2 ? rule.epsilon2 : rms);
}

// The squares of the scaled gradients.
__global__ void add_scaled(__grid_constant__ const Table table, const float* factor) {
  const Part part(table, kRows, true);
  const Entry& entry = table.entries[part.p];
  const Matrix matrix(entry);
  float sum = 0.0f;
  for (int64_t row = part.at + threadIdx.x / kWarp; row < part.at + part.n; row += kThreads / kWarp) {
    const float of_row = *matrix.mean_row / entry.of.slots[0][row];
    for (int64_t u = threadIdx.x % kWarp; u < matrix.columns; u += kWarp) {
      const float g = scaled(entry.of.gradient[row * matrix.columns + u], factor) * matrix.of_columns[u];
      sum += of_row * (g * g);
    }
  }
  sum = team_sum<kThreads>(sum, dynamic_shared<float>());
  if (threadIdx.x == 0) matrix.sums[part.block] = sum;
}

// A block for each parameter.
__global__ void clip_step(__grid_constant__ const Table table, const float* numbers, const float* factor) {
  const Entry& entry = table.entries[blockIdx.x];
  const Matrix matrix(entry);
  const double sum = sum_of_parts(matrix.sums, matrix.blocks, 1, dynamic_shared<double>());
  if (threadIdx.x > 0) return;
  const float rms = static_cast<float>(sqrt(sum / static_cast<double>(entry.of.size)));
  const float ratio = rms / Adafactor(numbers).threshold;
  *matrix.step /= ratio < 1.0f ? 1.0f : ratio;  // NaN stays
}

__global__ void apply_scaled(__grid_constant__ const Table table, const float* numbers, const float* factor) {
  const Part part(table, kRows, true);
  const Entry& entry = table.entries[part.p];
  const Adafactor rule(numbers);
  const Matrix matrix(entry);
  for (int64_t row = part.at + threadIdx.x / kWarp; row < part.at + part.n; row += kThreads / kWarp) {
    const float of_row = *matrix.step * sqrtf(*matrix.mean_row / entry.of.slots[0][row]);
    for (int64_t u = threadIdx.x % kWarp; u < matrix.columns; u += kWarp) {
      float& w = entry.of.value[row * matrix.columns + u];
      const float g = scaled(entry.of.gradient[row * matrix.columns + u], factor);
      w -= of_row * matrix.of_columns[u] * g + rule.decay * w;
    }
  }
}

__global__ void add_gradients(__grid_constant__ const Table table) {
  const Part part(table, kPerBlock, false);
  const Entry& entry = table.entries[part.p];
  float sum = 0.0f;
  each(part, [&](int64_t i) { sum += entry.of.gradient[i] * entry.of.gradient[i]; });
  sum = team_sum<kThreads>(sum, dynamic_shared<float>());
  if (threadIdx.x == 0) entry.scratch[part.block] = sum;
}

__global__ void root_of_sum(const float* parts, int64_t count, float* norm) {
  const double sum = sum_of_parts(parts, count, 1, dynamic_shared<double>());
  if (threadIdx.x == 0) *norm = static_cast<float>(sqrt(sum));
}

constexpr size_t kFloats = kThreads / kWarp * sizeof(float), kDoubles = kThreads * sizeof(double);  // shared memory

int64_t blocks_for(int64_t items, int64_t of_block) { return (items + of_block - 1) / of_block; }

// What a parameter needs: blocks, and floats of scratch.
struct Needs {
  int64_t blocks, scratch;
};

Needs needs_of(int rule, const RtfParameter& of) {
  const int64_t blocks = blocks_for(of.size, kPerBlock);
  if (rule == RTF_LAMB || rule == RTF_SCALED_ADAM) return {blocks, 2 + 2 * blocks};
  if (rule != RTF_ADAFACTOR || of.size == 0) return {blocks, 0};
  const int64_t of_matrix = blocks_for(of.size / of.columns, kRows);
  return {of_matrix, 2 + of_matrix + (1 + of_matrix) * of.columns};
}

// Calls run(table, its blocks) for tables of all parameters that are not empty. parameter(p): a parameter and what it
// needs.
template <typename Parameter, typename Run>
cudaError_t by_tables(int64_t count, float* scratch, const Parameter& parameter, const Run& run) {
  Table table{};
  int64_t blocks = 0;
  cudaError_t error = cudaSuccess;
  for (int64_t p = 0; p < count && error == cudaSuccess; ++p) {
    const auto [of, needs] = parameter(p);
    if (of.size > 0) {
      table.entries[table.count++] = {of, blocks, scratch};
      blocks += needs.blocks;
      scratch += needs.scratch;
    }
    if (table.count == 0 || (table.count < kPerTable && p + 1 < count)) continue;
    error = run(table, static_cast<unsigned>(blocks));
    table.count = 0;
    blocks = 0;
  }
  return error;
}

// The launches of a rule for a table.
class Launches {
 public:
  Launches(const Table& table, unsigned blocks, const float* numbers, const float* factor, cudaStream_t stream)
      : table_(table), blocks_(blocks), numbers_(numbers), factor_(factor), stream_(stream) {}

  template <class Rule>
  cudaError_t simple() const {
    return launch(update<Rule>, blocks_, kThreads, 0, stream_, table_, numbers_, factor_);
  }

  template <class Rule>
  cudaError_t by_sums() const {
    cudaError_t error = launch(add_entries<Rule>, blocks_, kThreads, kFloats, stream_, table_, numbers_, factor_);
    if (error == cudaSuccess) error = by_parameter(make_factors<Rule>);
    if (error == cudaSuccess)
      error = launch(apply_factors<Rule>, blocks_, kThreads, 0, stream_, table_, numbers_, factor_);
    return error;
  }

  cudaError_t adafactor() const {
    cudaError_t error = launch(add_squares, blocks_, kThreads, kFloats, stream_, table_, numbers_, factor_);
    if (error == cudaSuccess) error = by_parameter(make_columns);
    if (error == cudaSuccess) error = launch(add_scaled, blocks_, kThreads, kFloats, stream_, table_, factor_);
    if (error == cudaSuccess) error = by_parameter(clip_step);
    if (error == cudaSuccess) error = launch(apply_scaled, blocks_, kThreads, 0, stream_, table_, numbers_, factor_);
    return error;
  }

 private:
  template <typename Kernel>
  cudaError_t by_parameter(Kernel kernel) const {
    return launch(kernel, static_cast<unsigned>(table_.count), kThreads, kDoubles, stream_, table_, numbers_, factor_);
  }

  const Table& table_;
  const unsigned blocks_;
  const float* const numbers_;
  const float* const factor_;
  const cudaStream_t stream_;
};

using Launch = cudaError_t (Launches::*)() const;
const Launch kLaunches[] = {&Launches::simple<Sgd>,
                            &Launches::simple<Momentum>,
                            &Launches::simple<KerasSgd>,
                            &Launches::simple<Adam>,
                            &Launches::simple<AmsGrad>,
                            &Launches::simple<NadamKeras>,
                            &Launches::simple<RmsProp>,
                            &Launches::simple<CenteredRmsProp>,
                            &Launches::simple<Adagrad>,
                            &Launches::simple<Adadelta>,
                            &Launches::simple<RAdam>,
                            &Launches::simple<Lion>,
                            &Launches::simple<ScheduleFree>,
                            &Launches::simple<Average>,
                            &Launches::by_sums<Lamb>,
                            &Launches::by_sums<ScaledAdam>,
                            &Launches::adafactor};
static_assert(sizeof(kLaunches) == RTF_RULES * sizeof(Launch), "a rule is missing");

const char* text_of(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_update_cuda_scratch_size(int rule, const RtfParameter* parameters, int64_t count) {
  int64_t size = 0;
  for (int64_t p = 0; p < count; ++p) size += rtf::needs_of(rule, parameters[p]).scratch;
  return size;
}

const char* rtf_update_cuda_f32(int rule, const float* numbers, const float* factor, const RtfParameter* parameters,
                                int64_t count, float* scratch, void* stream) {
  const auto parameter = [&](int64_t p) { return std::make_pair(parameters[p], rtf::needs_of(rule, parameters[p])); };
  return rtf::text_of(rtf::by_tables(count, scratch, parameter, [&](const rtf::Table& table, unsigned blocks) {
    return (rtf::Launches(table, blocks, numbers, factor, static_cast<cudaStream_t>(stream)).*rtf::kLaunches[rule])();
  }));
}

int64_t rtf_norm_of_all_cuda_scratch_size(const int64_t* sizes, int64_t count) {
  int64_t size = 0;
  for (int64_t i = 0; i < count; ++i) size += rtf::blocks_for(sizes[i], rtf::kPerBlock);
  return size;
}

const char* rtf_norm_of_all_cuda_f32(const float* const* arrays, const int64_t* sizes, int64_t count, float* norm,
                                     float* scratch, void* stream) {
  const auto gpu = static_cast<cudaStream_t>(stream);
  const auto parameter = [&](int64_t i) {
    const int64_t blocks = rtf::blocks_for(sizes[i], rtf::kPerBlock);
    return std::make_pair(RtfParameter{sizes[i], 1, nullptr, arrays[i], {}}, rtf::Needs{blocks, blocks});
  };
  const cudaError_t error = rtf::by_tables(count, scratch, parameter, [&](const rtf::Table& table, unsigned blocks) {
    return rtf::launch(rtf::add_gradients, blocks, rtf::kThreads, rtf::kFloats, gpu, table);
  });
  if (error != cudaSuccess) return rtf::text_of(error);
  const int64_t parts = rtf_norm_of_all_cuda_scratch_size(sizes, count);
  return rtf::text_of(rtf::launch(rtf::root_of_sum, 1, rtf::kThreads, rtf::kDoubles, gpu, scratch, parts, norm));
}

const char* rtf_copy_cuda(void* to, const void* from, int64_t bytes, void* stream) {
  return rtf::text_of(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                                      static_cast<cudaStream_t>(stream)));
}
}
