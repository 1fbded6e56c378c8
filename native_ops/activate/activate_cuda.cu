// Bias, activation, dropout and residual connection on the GPU. The bias and the factors of the columns of a lane and,
// in the gradient, their sums stay in registers.
#include "../common/cuda/philox.h"
#include "columns_cuda.h"
#include "functions_cuda.h"
#include "with_function.h"

namespace rtf {
namespace {

// The key and the counter of a generator, as TensorFlow leaves them in the memory of the GPU; null without dropout.
struct DeviceRandom {
  const uint64_t *key, *counter;

  __device__ __forceinline__ PhiloxState state() const { return {key[0], {counter[0], counter[1]}}; }
};

// Dropout of the columns of this thread.
class Dropped {
 public:
  __device__ __forceinline__ Dropped(const RtfActivate& s, const DeviceRandom& random, uint32_t least)
      : s_(s), state_(s.rate > 0 ? random.state() : PhiloxState{}), least_(least) {}

  // Bit k: whether column k of this thread is kept. For all lanes of a warp at a time.
  __device__ __forceinline__ unsigned kept(int64_t row) const {
    if (!(s_.rate > 0)) return 0u;
    const uint64_t number = s_.numbers ? s_.numbers[row] : row;
    return kept_of_lane(state_, number * s_.width + Columns{s_.width}.of_block(), least_);
  }

  __device__ __forceinline__ float factor(unsigned kept, int k) const {
    return !(s_.rate > 0) ? 1.0f : kept >> k & 1 ? s_.scale : 0.0f;
  }

 private:
  const RtfActivate& s_;
  const PhiloxState state_;
  const uint32_t least_;
};

template <int kFunction>
__global__ void __launch_bounds__(kWarps* kWarp)
    activate(RtfActivate s, DeviceRandom random, uint32_t least, const float* x, const float* bias,
             const float* factors, const float* residual, float* y) {
  const Columns columns{s.width};
  const Dropped dropped(s, random, least);
  float biases[kEach], scales[kEach];
  columns.each([&](int64_t u, int k) {
    biases[k] = bias ? bias[u] : 0.0f;
    scales[k] = factors ? factors[u] : 1.0f;
  });
  each_row(s.rows, [&](int64_t row) {
    const int64_t at = row * s.width;
    float z[kEach], added[kEach];
    columns.each([&](int64_t u, int k) {
      z[k] = x[at + u];
      added[k] = residual ? residual[at + u] : 0.0f;
    });
    const unsigned kept = dropped.kept(row);
    columns.each([&](int64_t u, int k) {
      const float value = activation(kFunction, z[k] + biases[k]) * scales[k];
      y[at + u] = value * dropped.factor(kept, k) + added[k];
    });
  });
}

// parts [blocks of rows, width], null: not wanted; `scale` is one more factor.
template <int kFunction>
__global__ void __launch_bounds__(kWarps* kWarp)
    activate_grad(RtfActivate s, DeviceRandom random, uint32_t least, float scale, const float* dy, const float* kept,
                  bool of_output, const float* bias, const float* factors, float* dx, float* parts) {
  const Columns columns{s.width};
  const Dropped dropped(s, random, least);
  float biases[kEach], scales[kEach], sums[kEach] = {};
  columns.each([&](int64_t u, int k) {
    biases[k] = bias && !of_output ? bias[u] : 0.0f;
    scales[k] = factors ? scale * factors[u] : scale;
  });
  each_row(s.rows, [&](int64_t row) {
    const int64_t at = row * s.width;
    float d[kEach], z[kEach];
    columns.each([&](int64_t u, int k) {
      d[k] = dy[at + u];
      z[k] = kFunction == RTF_IDENTITY ? 0.0f : kept[at + u] + biases[k];
    });
    const unsigned bits = dropped.kept(row);
    columns.each([&](int64_t u, int k) {
      const float slope = of_output ? derivative_of_output(kFunction, z[k]) : derivative(kFunction, z[k]);
      const float value = d[k] * scales[k] * dropped.factor(bits, k) * slope;
      dx[at + u] = value;
      sums[k] += value;
    });
  });
  if (!parts) return;
  float* shared = dynamic_shared<float>();  // [kWarps, kColumns]
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int k = 0; k < kEach; ++k) shared[warp * kColumns + k * kWarp + lane] = sums[k];
  __syncthreads();
  const int64_t u = columns.of_block() + threadIdx.x;
  if (threadIdx.x >= kColumns || u >= s.width) return;
  float sum = 0.0f;
  for (int other = 0; other < kWarps; ++other) sum += shared[other * kColumns + threadIdx.x];
  parts[blockIdx.y * s.width + u] = sum;
}

__global__ void gate(int64_t rows, int64_t width, int f, int g, const float* x, float* y) {
  const Columns columns{width};
  each_row(rows, [&](int64_t row) {
    const float *a = x + 2 * row * width, *b = a + width;
    columns.each([&](int64_t u, int) { y[row * width + u] = activation(f, a[u]) * activation(g, b[u]); });
  });
}

__global__ void gate_grad(int64_t rows, int64_t width, int f, int g, const float* x, const float* dy, float* dx) {
  const Columns columns{width};
  each_row(rows, [&](int64_t row) {
    const float *a = x + 2 * row * width, *b = a + width;
    float *da = dx + 2 * row * width, *db = da + width;
    columns.each([&](int64_t u, int) {
      const float d = dy[row * width + u], value = a[u], weight = b[u];
      da[u] = d * derivative(f, value) * activation(g, weight);
      db[u] = d * activation(f, value) * derivative(g, weight);
    });
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

const char* rtf_activate_cuda_f32(const RtfActivate* shape, const uint64_t* key, const uint64_t* counter,
                                  const float* x, const float* bias, const float* factors, const float* residual,
                                  float* y, void* stream) {
  const rtf::DeviceRandom random{key, counter};
  return rtf::text_of(rtf::with_function(shape->function, [&](auto function) {
    return rtf::run(rtf::activate<decltype(function)::value>, shape->rows, shape->width, 0, stream, *shape, random,
                    rtf::least_kept(shape->rate), x, bias, factors, residual, y);
  }));
}

int64_t rtf_activate_cuda_scratch_size(const RtfActivate* shape) {
  return rtf::blocks_of_rows(shape->rows, rtf::kLeastRows) * shape->width;
}

const char* rtf_activate_grad_cuda_f32(const RtfActivate* shape, const uint64_t* key, const uint64_t* counter,
                                       const float* dy, const float* kept, int of_output, const float* bias,
                                       const float* factors, float* dx, float* dbias, float* scratch, void* stream) {
  RtfActivate s = *shape;
  float scale = 1.0f;
  if (s.function == RTF_RELU && of_output && s.rate > 0) {
    // What was dropped is 0 in the output, where the derivative is 0 too: nothing to draw.
    scale = s.scale;
    s.rate = 0.0f;
  }
  const rtf::DeviceRandom random{key, counter};
  const size_t shared = dbias ? rtf::kWarps * rtf::kColumns * sizeof(float) : 0;
  const cudaError_t error = rtf::with_function(s.function, [&](auto function) {
    return rtf::run(rtf::activate_grad<decltype(function)::value>, s.rows, s.width, shared, stream, s, random,
                    rtf::least_kept(s.rate), scale, dy, kept, of_output != 0, bias, factors, dx,
                    dbias ? scratch : nullptr);
  });
  if (error != cudaSuccess || !dbias || s.width == 0) return rtf::text_of(error);
  const int64_t parts = s.rows ? rtf::blocks_of_rows(s.rows, rtf::kLeastRows) : 0;
  return rtf::text_of(
      rtf::launch_add_parts(parts, s.width, scratch, dbias, nullptr, static_cast<cudaStream_t>(stream)));
}

const char* rtf_gate_cuda_f32(int64_t rows, int64_t width, int f, int g, const float* x, float* y, void* stream) {
  return rtf::text_of(rtf::run(rtf::gate, rows, width, 0, stream, rows, width, f, g, x, y));
}

const char* rtf_gate_grad_cuda_f32(int64_t rows, int64_t width, int f, int g, const float* x, const float* dy,
                                   float* dx, void* stream) {
  return rtf::text_of(rtf::run(rtf::gate_grad, rows, width, 0, stream, rows, width, f, g, x, dy, dx));
}
}
