// Batch normalisation and an activation on the GPU. Moments are those of each warp's rows, by Welford's update, joined
// in an order that depends on the number of rows alone. The gradient computes the derivative of the activation twice,
// rather than write and read it once more.
#include "batch_norm.h"
#include "columns_cuda.h"
#include "functions_cuda.h"
#include "with_function.h"

namespace rtf {
namespace {

constexpr int kThreads = kWarps * kWarp;

__device__ __forceinline__ bool is_valid(const RtfBatchNorm& s, int64_t row) { return !s.mask || s.mask[row]; }

// Number of rows, mean, and sum of squared distances from it, for a column.
struct Moments {
  float count = 0.0f, mean = 0.0f, squares = 0.0f;

  // Adds those of other rows, as Chan, Golub & LeVeque 1983.
  __device__ __forceinline__ void add(const Moments& more) {
    if (more.count == 0.0f) return;
    count += more.count;
    const float share = more.count / count, d = more.mean - mean;
    mean += d * share;
    squares += more.squares + d * d * (count - more.count) * share;
  }
};

// parts [2, blocks of rows, width]: means and sums of squares; counts [blocks of rows].
__global__ void __launch_bounds__(kThreads) moments(RtfBatchNorm s, const float* x, float* parts, float* counts) {
  const Columns columns{s.width};
  float count = 0.0f, means[kEach] = {}, squares[kEach] = {};
  each_row(s.rows, [&](int64_t row) {
    if (!is_valid(s, row)) return;
    count += 1.0f;
    const float share = 1.0f / count;
    columns.each([&](int64_t u, int k) {
      const float v = x[row * s.width + u], d = v - means[k];
      means[k] += d * share;
      squares[k] += d * (v - means[k]);
    });
  });
  float *of_means = dynamic_shared<float>(), *of_squares = of_means + kWarps * kColumns;  // [kWarps, kColumns]
  float* of_counts = of_squares + kWarps * kColumns;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    of_means[warp * kColumns + k * kWarp + lane] = means[k];
    of_squares[warp * kColumns + k * kWarp + lane] = squares[k];
  }
  if (lane == 0) of_counts[warp] = count;
  __syncthreads();
  const int64_t u = columns.of_block() + threadIdx.x;
  if (threadIdx.x >= kColumns || u >= s.width) return;
  Moments whole;
  for (int other = 0; other < kWarps; ++other) {
    const int at = other * kColumns + threadIdx.x;
    whole.add({of_counts[other], of_means[at], of_squares[at]});
  }
  parts[blockIdx.y * s.width + u] = whole.mean;
  parts[(gridDim.y + blockIdx.y) * s.width + u] = whole.squares;
  if (u == 0) counts[blockIdx.y] = whole.count;
}

// Joins the blocks of rows: a lane has a column, and a warp every kWarps-th block.
__global__ void __launch_bounds__(kThreads)
    join(int64_t blocks, int64_t width, const float* parts, const float* counts, float* mean, float* variance) {
  Moments* shared = dynamic_shared<Moments>();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t u = blockIdx.x * static_cast<int64_t>(kWarp) + lane;
  Moments whole;
  if (u < width)
    for (int64_t block = warp; block < blocks; block += kWarps)
      whole.add({counts[block], parts[block * width + u], parts[(blocks + block) * width + u]});
  shared[threadIdx.x] = whole;
  __syncthreads();
  if (warp > 0 || u >= width) return;
  for (int other = 1; other < kWarps; ++other) whole.add(shared[other * kWarp + lane]);
  mean[u] = whole.mean;
  variance[u] = whole.count > 0.0f ? whole.squares / whole.count : 0.0f;
}

// What there is for a column: y = f((x - mean) * slope + shift).
struct Arrays {
  const float *mean, *variance, *scale, *shift;
};

// That of the columns of this thread.
struct Lines {
  float mean[kEach], factor[kEach], slope[kEach], shift[kEach];

  __device__ __forceinline__ Lines(const RtfBatchNorm& s, const Arrays& arrays) {
    Columns{s.width}.each([&](int64_t u, int k) {
      mean[k] = arrays.mean[u];
      factor[k] = 1.0f / sqrtf(arrays.variance[u] + s.epsilon);
      slope[k] = arrays.scale ? factor[k] * arrays.scale[u] : factor[k];
      shift[k] = arrays.shift ? arrays.shift[u] : 0.0f;
    });
  }

  __device__ __forceinline__ float at(float distance, int k) const { return distance * slope[k] + shift[k]; }
};

template <int kFunction>
__global__ void __launch_bounds__(kThreads) normalize(RtfBatchNorm s, Arrays arrays, const float* x, float* y) {
  const Columns columns{s.width};
  const Lines lines(s, arrays);
  each_row(s.rows, [&](int64_t row) {
    float values[kEach];
    columns.each([&](int64_t u, int k) { values[k] = x[row * s.width + u]; });
    columns.each([&](int64_t u, int k) {
      y[row * s.width + u] = activation(kFunction, lines.at(values[k] - lines.mean[k], k));
    });
  });
}

// Calls function(column, k, gradient of the argument of f, distance from the mean) for a row.
template <int kFunction, typename Function>
__device__ __forceinline__ void each_gradient(const RtfBatchNorm& s, const Lines& lines, int64_t row, const float* dy,
                                              const float* x, const Function& function) {
  const Columns columns{s.width};
  float gradients[kEach], distances[kEach];
  columns.each([&](int64_t u, int k) {
    gradients[k] = dy[row * s.width + u];
    distances[k] = x[row * s.width + u] - lines.mean[k];
  });
  columns.each([&](int64_t u, int k) {
    const float slope = kFunction == RTF_IDENTITY ? 1.0f : derivative(kFunction, lines.at(distances[k], k));
    function(u, k, gradients[k] * slope, distances[k]);
  });
}

// parts [2, blocks of rows, width]: sums of the gradient of the argument of f, and of it times the distance;
// counts [blocks of rows]: valid rows.
template <int kFunction>
__global__ void __launch_bounds__(kThreads)
    gradient_sums(RtfBatchNorm s, Arrays arrays, const float* dy, const float* x, float* parts, float* counts) {
  const Lines lines(s, arrays);
  float count = 0.0f, sums[kEach] = {}, products[kEach] = {};
  each_row(s.rows, [&](int64_t row) {
    if (is_valid(s, row)) count += 1.0f;
    each_gradient<kFunction>(s, lines, row, dy, x, [&](int64_t, int k, float d, float distance) {
      sums[k] += d;
      products[k] += d * distance;
    });
  });
  constexpr int kBoth = 2 * kColumns;  // sums, then products
  static_assert(kBoth == kThreads, "a thread adds up the warps for a sum or a product of a column");
  float *shared = dynamic_shared<float>(), *of_counts = shared + kWarps * kBoth;  // [kWarps, kBoth], [kWarps]
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    shared[warp * kBoth + k * kWarp + lane] = sums[k];
    shared[warp * kBoth + kColumns + k * kWarp + lane] = products[k];
  }
  if (lane == 0) of_counts[warp] = count;
  __syncthreads();
  const int64_t u = Columns{s.width}.of_block() + threadIdx.x % kColumns;
  if (u >= s.width) return;
  float sum = 0.0f, valid = 0.0f;
  for (int other = 0; other < kWarps; ++other) {
    sum += shared[other * kBoth + threadIdx.x];
    valid += of_counts[other];
  }
  parts[(threadIdx.x / kColumns * gridDim.y + blockIdx.y) * s.width + u] = sum;
  if (u == 0 && threadIdx.x == 0) counts[blockIdx.y] = valid;
}

// dshift and products [width] are whole sums; counts those of gradient_sums, with as many blocks of rows.
template <int kFunction>
__global__ void __launch_bounds__(kThreads)
    gradient(RtfBatchNorm s, Arrays arrays, const float* dy, const float* x, const float* dshift, const float* products,
             const float* counts, float* dx, float* dscale) {
  const Columns columns{s.width};
  const Lines lines(s, arrays);
  const float mine = threadIdx.x < gridDim.y ? counts[threadIdx.x] : 0.0f;
  const float valid = fmaxf(1.0f, team_sum<kThreads>(mine, dynamic_shared<float>()));
  // What a valid row changes in the mean, and in the variance by its distance from it.
  float of_mean[kEach], of_variance[kEach];
  columns.each([&](int64_t u, int k) {
    const float of_scale = products[u] * lines.factor[k];
    of_mean[k] = dshift[u] / valid;
    of_variance[k] = of_scale * lines.factor[k] / valid;
    if (blockIdx.y == 0 && threadIdx.x < kWarp) dscale[u] = of_scale;
  });
  each_row(s.rows, [&](int64_t row) {
    const bool changes = is_valid(s, row);
    each_gradient<kFunction>(s, lines, row, dy, x, [&](int64_t u, int k, float d, float distance) {
      if (changes) d -= of_mean[k] + distance * of_variance[k];
      dx[row * s.width + u] = d * lines.slope[k];
    });
  });
}

// Blocks of rows of all of these kernels; `gradient` adds up their counts by one thread each.
int64_t blocks_of(const RtfBatchNorm& s) { return s.rows ? blocks_of_rows(s.rows, kLeastRows) : 0; }

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_batch_norm_cuda_scratch_size(const RtfBatchNorm* s) {
  return rtf::blocks_of(*s) * (2 * s->width + 1) + s->width;
}

const char* rtf_batch_moments_cuda_f32(const RtfBatchNorm* s, const float* x, float* mean, float* variance,
                                       float* scratch, void* stream) {
  const int64_t blocks = rtf::blocks_of(*s);
  float* counts = scratch + 2 * blocks * s->width;
  const size_t shared = (2 * rtf::kWarps * rtf::kColumns + rtf::kWarps) * sizeof(float);
  const cudaError_t error = rtf::run(rtf::moments, s->rows, s->width, shared, stream, *s, x, scratch, counts);
  if (error != cudaSuccess) return rtf::text_of(error);
  return rtf::text_of(rtf::launch(rtf::join, static_cast<unsigned>((s->width + rtf::kWarp - 1) / rtf::kWarp),
                                  rtf::kThreads, rtf::kThreads * sizeof(rtf::Moments),
                                  static_cast<cudaStream_t>(stream), blocks, s->width, scratch, counts, mean,
                                  variance));
}

const char* rtf_batch_norm_cuda_f32(const RtfBatchNorm* s, const float* x, const float* mean, const float* variance,
                                    const float* scale, const float* shift, float* y, void* stream) {
  const rtf::Arrays arrays{mean, variance, scale, shift};
  return rtf::text_of(rtf::with_function(s->function, [&](auto function) {
    return rtf::run(rtf::normalize<decltype(function)::value>, s->rows, s->width, 0, stream, *s, arrays, x, y);
  }));
}

const char* rtf_batch_norm_grad_cuda_f32(const RtfBatchNorm* s, const float* dy, const float* x, const float* mean,
                                         const float* variance, const float* scale, const float* shift, float* dx,
                                         float* dscale, float* dshift, float* scratch, void* stream) {
  const auto gpu = static_cast<cudaStream_t>(stream);
  const int64_t blocks = rtf::blocks_of(*s);
  if (blocks == 0) return rtf::text_of(rtf::launch_add_parts(0, s->width, scratch, dshift, dscale, gpu));
  const rtf::Arrays arrays{mean, variance, scale, shift};
  float *counts = scratch + 2 * blocks * s->width, *products = counts + blocks;
  return rtf::text_of(rtf::with_function(s->function, [&](auto function) {
    constexpr int kFunction = decltype(function)::value;
    size_t shared = (2 * rtf::kWarps * rtf::kColumns + rtf::kWarps) * sizeof(float);
    cudaError_t error =
        rtf::run(rtf::gradient_sums<kFunction>, s->rows, s->width, shared, stream, *s, arrays, dy, x, scratch, counts);
    if (error != cudaSuccess) return error;
    error = rtf::launch_add_parts(blocks, s->width, scratch, dshift, products, gpu);
    if (error != cudaSuccess) return error;
    shared = rtf::kWarps * sizeof(float);
    return rtf::run(rtf::gradient<kFunction>, s->rows, s->width, shared, stream, *s, arrays, dy, x, dshift, products,
                    counts, dx, dscale);
  }));
}
}
