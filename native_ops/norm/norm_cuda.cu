// Layer normalisation on the GPU. The threads of a team share a row, of which each of them keeps its columns in
// registers, so that memory is read once; only longer rows are read again. In the gradient a team goes through several
// rows and adds up the gradients of scale and bias in its columns.
#include <type_traits>

#include "../common/cuda/sums.h"
#include "norm.h"

namespace rtf {
namespace {

constexpr int kThreads = 256;
constexpr int kHeldColumns = 16;  // of a thread: the gradient has four numbers for each of them

// Calls function(column, its number among those of this thread) for the columns of this thread; kHeld: how many there
// are at most, 0 for any number of them, which all have the number 0.
template <int kTeam, int kHeld, typename Function>
__device__ __forceinline__ void each_column(int64_t width, const Function& function) {
  const int64_t first = threadIdx.x % kTeam;
  if (kHeld == 0)
    for (int64_t u = first; u < width; u += kTeam) function(u, 0);
#pragma unroll
  for (int k = 0; k < kHeld; ++k)
    if (first + k * kTeam < width) function(first + k * kTeam, k);
}

template <int kTeam, int kHeld>
__global__ void __launch_bounds__(kThreads)
    norm(RtfNorm s, const float* x, const float* scale, const float* bias, float* y, float* mean, float* factor) {
  const int64_t row = blockIdx.x * static_cast<int64_t>(kThreads / kTeam) + threadIdx.x / kTeam;
  if (row >= s.rows) return;
  float* shared = dynamic_shared<float>();
  const float count = static_cast<float>(s.width);
  float held[kHeld ? kHeld : 1], sum = 0.0f, squares = 0.0f;
  x += row * s.width;
  y += row * s.width;
  each_column<kTeam, kHeld>(s.width, [&](int64_t u, int k) { sum += held[k] = x[u]; });
  const float m = team_sum<kTeam>(sum, shared) / count;
  each_column<kTeam, kHeld>(s.width, [&](int64_t u, int k) {
    const float d = (kHeld ? held[k] : x[u]) - m;
    squares += d * d;
  });
  const float f = 1.0f / sqrtf(team_sum<kTeam>(squares, shared) / count + s.epsilon);
  each_column<kTeam, kHeld>(s.width, [&](int64_t u, int k) {
    float v = ((kHeld ? held[k] : x[u]) - m) * f;
    if (scale) v *= scale[u];
    if (bias) v += bias[u];
    y[u] = v;
  });
  if (threadIdx.x % kTeam != 0) return;
  mean[row] = m;
  factor[row] = f;
}

// parts [2, blocks, width]: the gradients of scale and bias, summed over the rows of each block.
template <int kTeam, int kHeld>
__global__ void __launch_bounds__(kThreads, 1)
    norm_grad(RtfNorm s, const float* dy, const float* x, const float* scale, const float* mean, const float* factor,
              float* dx, float* parts) {
  constexpr int kTeams = kThreads / kTeam, kArrays = kHeld ? kHeld : 1;
  const int team = threadIdx.x / kTeam;
  const int64_t first = blockIdx.x * s.rows / gridDim.x, last = (blockIdx.x + 1) * s.rows / gridDim.x;
  float *shared = dynamic_shared<float>(), *sums = shared + kTeam / kWarp;  // sums: [2, width], of several teams
  float *to_scale = parts + blockIdx.x * s.width, *to_bias = to_scale + gridDim.x * s.width;
  const float count = static_cast<float>(s.width);
  float scales[kArrays] = {}, biases[kArrays] = {}, gradients[kArrays], values[kArrays];
  for (int64_t row = first + team; row < last; row += kTeams) {
    const float m = mean[row], f = factor[row];
    const int64_t at = row * s.width;
    float sum = 0.0f, product = 0.0f;
    each_column<kTeam, kHeld>(s.width, [&](int64_t u, int k) {
      const float d = dy[at + u], z = (x[at + u] - m) * f, g = scale ? d * scale[u] : d;
      if (kHeld) {
        scales[k] += d * z;
        biases[k] += d;
      } else {  // this thread alone adds to its columns
        to_scale[u] = (row == first ? 0.0f : to_scale[u]) + d * z;
        to_bias[u] = (row == first ? 0.0f : to_bias[u]) + d;
      }
      gradients[k] = g;
      values[k] = z;
      sum += g;
      product += g * z;
    });
    const float a = team_sum<kTeam>(sum, shared) / count, b = team_sum<kTeam>(product, shared) / count;
    each_column<kTeam, kHeld>(s.width, [&](int64_t u, int k) {
      if (!kHeld) {
        values[k] = (x[at + u] - m) * f;
        gradients[k] = scale ? dy[at + u] * scale[u] : dy[at + u];
      }
      dx[at + u] = (gradients[k] - a - values[k] * b) * f;
    });
  }
  for (int turn = 0; kHeld && turn < kTeams; ++turn) {  // one team after the other, for the same sum each time
    if (team == turn)
      each_column<kTeam, kHeld>(s.width, [&](int64_t u, int k) {
        const float of_scale = (turn ? sums[u] : 0.0f) + scales[k];
        const float of_bias = (turn ? sums[s.width + u] : 0.0f) + biases[k];
        const bool whole = turn == kTeams - 1;
        (whole ? to_scale : sums)[u] = of_scale;
        (whole ? to_bias : sums + s.width)[u] = of_bias;
      });
    __syncthreads();
  }
}

// Calls run(threads of a team, columns that each of them keeps) as integral constants.
template <typename Run>
cudaError_t with_team(int64_t width, const Run& run) {
  using Warp = std::integral_constant<int, kWarp>;
  using Block = std::integral_constant<int, kThreads>;
  using Held = std::integral_constant<int, kHeldColumns>;
  if (width <= kWarp * kHeldColumns) return run(Warp(), Held());
  if (width <= kThreads * kHeldColumns) return run(Block(), Held());
  return run(Block(), std::integral_constant<int, 0>());
}

int64_t blocks_of(const RtfNorm& shape) {
  const int64_t teams = shape.width <= kWarp * kHeldColumns ? kThreads / kWarp : 1;
  return blocks_of_rows(shape.rows, 2 * teams);
}

const char* text_of(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

}  // namespace
}  // namespace rtf

extern "C" {

const char* rtf_norm_cuda_f32(const RtfNorm* shape, const float* x, const float* scale, const float* bias, float* y,
                              float* mean, float* factor, void* stream) {
  if (shape->rows == 0) return nullptr;
  return rtf::text_of(rtf::with_team(shape->width, [&](auto threads, auto held) {
    constexpr int kTeam = decltype(threads)::value, kTeams = rtf::kThreads / kTeam;
    const unsigned blocks = static_cast<unsigned>((shape->rows + kTeams - 1) / kTeams);
    return rtf::launch(rtf::norm<kTeam, decltype(held)::value>, blocks, rtf::kThreads,
                       kTeam / rtf::kWarp * sizeof(float), static_cast<cudaStream_t>(stream), *shape, x, scale, bias, y,
                       mean, factor);
  }));
}

int64_t rtf_norm_cuda_scratch_size(const RtfNorm* shape) { return 2 * rtf::blocks_of(*shape) * shape->width; }

const char* rtf_norm_grad_cuda_f32(const RtfNorm* shape, const float* dy, const float* x, const float* scale,
                                   const float* mean, const float* factor, float* dx, float* dscale, float* dbias,
                                   float* scratch, void* stream) {
  const auto gpu = static_cast<cudaStream_t>(stream);
  const int64_t blocks = shape->rows ? rtf::blocks_of(*shape) : 0;
  const cudaError_t error = blocks == 0 ? cudaSuccess : rtf::with_team(shape->width, [&](auto threads, auto held) {
    constexpr int kTeam = decltype(threads)::value;
    const int64_t shared = kTeam / rtf::kWarp + (kTeam < rtf::kThreads ? 2 * shape->width : 0);
    return rtf::launch(rtf::norm_grad<kTeam, decltype(held)::value>, static_cast<unsigned>(blocks), rtf::kThreads,
                       shared * sizeof(float), gpu, *shape, dy, x, scale, mean, factor, dx, scratch);
  });
  if (error != cudaSuccess) return rtf::text_of(error);
  return rtf::text_of(rtf::launch_add_parts(blocks, shape->width, scratch, dscale, dbias, gpu));
}
}
