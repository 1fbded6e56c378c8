// Attention in a beam search on the GPU: each hypothesis has one query for each head.
//
// A block has a head of one or a few hypotheses, and goes through their frames in tiles. Each thread has the energies
// of one frame. Then each warp adds up the weighted values of every fourth frame of the tile, whose numbers its lanes
// share. Weights and sums are relative to the highest energy so far, and scaled down where a tile has a higher one, so
// that no array of all weights is needed. The order of all sums follows from the sizes of a head alone.
#include <float.h>

#include "../common/cuda/sums.h"
#include "beam_attention_cuda.h"

namespace rtf {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kTile = kThreads;           // frames, one for each thread
constexpr int kColumns = 4;               // of the values, for each lane
constexpr int kWidth = kColumns * kWarp;  // columns of a block; others are those of another block
static_assert(kWidth == kThreads, "each thread writes one column");
constexpr int kOnceQueries = 4;  // hypotheses that share a read of the frames

// Frames that each hypothesis has for itself, at the entries that wrote them, and the one of this step, which is
// written.
struct OwnFrames {
  static constexpr int kQueries = 1;

  RtfBeamAttention s;
  const float* qkv;
  const int32_t* rows;
  const float* shift;
  float *keys, *values, *y;
  int32_t* next_rows;

  struct Group {
    const OwnFrames& x;
    int64_t entry, head;
    const float* of_step;  // query, key and value

    __device__ Group(const OwnFrames& frames, int64_t index, int64_t head_)
        : x(frames),
          entry(index),
          head(head_),
          of_step(frames.qkv + (index * frames.s.heads + head_) * (2 * frames.s.key + frames.s.value)) {}

    __device__ int64_t key_size() const { return x.s.key; }
    __device__ int64_t value_size() const { return x.s.value; }
    __device__ int64_t frames() const { return x.s.steps + 1; }
    __device__ int64_t length(int) const { return frames(); }
    __device__ float query(int, int64_t k) const { return of_step[k] * (1.0f / sqrtf(static_cast<float>(x.s.key))); }
    __device__ const float* key(int64_t step) const { return place(x.keys, x.s.key, step, of_step + x.s.key); }
    __device__ const float* value(int64_t step) const {
      return place(x.values, x.s.value, step, of_step + 2 * x.s.key);
    }
    __device__ const float* shift(int64_t step) const { return x.shift ? x.shift + step * x.s.key : nullptr; }
    __device__ float* y(int) const { return x.y + (entry * x.s.heads + head) * x.s.value; }

    // Keeps the key, the columns of the value, and the index of the frame of this step.
    __device__ void keep(int64_t first, int64_t last) const {
      const int64_t frame = (x.s.steps * x.s.entries + entry) * x.s.heads + head;
      for (int64_t u = first + threadIdx.x; u < last; u += kThreads)
        x.values[frame * x.s.value + u] = of_step[2 * x.s.key + u];
      if (first > 0) return;
      for (int64_t k = threadIdx.x; k < x.s.key; k += kThreads) x.keys[frame * x.s.key + k] = of_step[x.s.key + k];
      if (head > 0) return;
      for (int64_t step = threadIdx.x; step <= x.s.steps; step += kThreads)
        x.next_rows[entry * (x.s.steps + 1) + step] =
            step < x.s.steps ? x.rows[entry * x.s.steps + step] : static_cast<int32_t>(entry);
    }

   private:
    // The vector of a step; null if its index is wrong, which the host can't check.
    __device__ const float* place(const float* frames, int64_t size, int64_t step, const float* now) const {
      if (step == x.s.steps) return now;
      const int64_t row = x.rows[entry * x.s.steps + step];
      return row < 0 || row >= x.s.entries ? nullptr : frames + ((step * x.s.entries + row) * x.s.heads + head) * size;
    }
  };
};

// Frames that all hypotheses of a sequence share.
struct SharedFrames {
  static constexpr int kQueries = kOnceQueries;

  RtfOnce s;
  int64_t value_size;
  float scale;
  const float *queries, *keys, *values;
  const int32_t* lengths;
  float* y_of_all;

  // Groups of hypotheses of a sequence.
  __device__ int64_t groups() const { return (s.beam + kQueries - 1) / kQueries; }

  struct Group {
    const SharedFrames& x;
    int64_t b, head, first, last;  // entries

    __device__ Group(const SharedFrames& frames_, int64_t index, int64_t head_)
        : x(frames_), b(index / frames_.groups()), head(head_) {
      first = b * x.s.beam + index % x.groups() * kQueries;
      last = min(static_cast<long long>(first + kQueries), static_cast<long long>((b + 1) * x.s.beam));
    }

    __device__ int64_t key_size() const { return x.s.size; }
    __device__ int64_t value_size() const { return x.value_size; }
    __device__ int64_t length(int i) const {
      if (first + i >= last) return 0;
      const int64_t length = x.lengths ? x.lengths[first + i] : x.s.frames;
      return length < 0 ? 0 : length < x.s.frames ? length : x.s.frames;
    }
    __device__ int64_t frames() const {
      int64_t most = 0;
      for (int i = 0; i < kQueries; ++i) most = length(i) > most ? length(i) : most;
      return most;
    }
    __device__ float query(int i, int64_t k) const {
      return first + i < last ? x.scale * x.queries[((first + i) * x.s.heads + head) * x.s.size + k] : 0.0f;
    }
    __device__ const float* key(int64_t frame) const {
      return x.keys + ((b * x.s.frames + frame) * x.s.heads + head) * x.s.size;
    }
    __device__ const float* value(int64_t frame) const {
      return x.values + ((b * x.s.frames + frame) * x.s.heads + head) * x.value_size;
    }
    __device__ const float* shift(int64_t) const { return nullptr; }
    __device__ float* y(int i) const {
      return first + i < last ? x.y_of_all + ((first + i) * x.s.heads + head) * x.value_size : nullptr;
    }
    __device__ void keep(int64_t, int64_t) const {}
  };
};

// y[i] += queries[i] x for kQueries queries [kQueries, n] in shared memory, and a vector in global memory
template <int kQueries>
__device__ __forceinline__ void add_products(const float* queries, const float* x, int64_t n, float (&y)[kQueries]) {
  if ((reinterpret_cast<uintptr_t>(x) | static_cast<uintptr_t>(n) * sizeof(float)) % sizeof(float4) == 0) {
#pragma unroll 4
    for (int64_t k = 0; k < n; k += 4) {
      const float4 v = *reinterpret_cast<const float4*>(x + k);
#pragma unroll
      for (int i = 0; i < kQueries; ++i) {
        const float* query = queries + i * n + k;
        y[i] += query[0] * v.x + query[1] * v.y + query[2] * v.z + query[3] * v.w;
      }
    }
    return;
  }
#pragma unroll 4
  for (int64_t k = 0; k < n; ++k)
#pragma unroll
    for (int i = 0; i < kQueries; ++i) y[i] += queries[i * n + k] * x[k];
}

template <class Frames>
int64_t shared_floats(int64_t key_size) {
  constexpr int kQueries = Frames::kQueries;
  return kQueries * (key_size + kTile + kWarps) + kWarps * kWidth;
}

template <class Frames>
__global__ void __launch_bounds__(kThreads, 4) attend(Frames all) {
  constexpr int kQueries = Frames::kQueries;
  const typename Frames::Group group(all, blockIdx.x, blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int64_t key_size = group.key_size(), value_size = group.value_size();
  const int64_t column = blockIdx.z * static_cast<int64_t>(kWidth), frames = group.frames();
  float* queries = dynamic_shared<float>();        // [kQueries, key_size]
  float* weights = queries + kQueries * key_size;  // [kQueries, kTile]
  float* of_warps = weights + kQueries * kTile;    // [kQueries, kWarps]
  float* parts = of_warps + kQueries * kWarps;     // [kWarps, kWidth]
  for (int64_t k = thread; k < kQueries * key_size; k += kThreads)
    queries[k] = group.query(static_cast<int>(k / key_size), k % key_size);
  group.keep(column, min(static_cast<long long>(column + kWidth), static_cast<long long>(value_size)));
  __syncthreads();
  float highest[kQueries], sums[kQueries], results[kQueries][kColumns] = {};
#pragma unroll
  for (int i = 0; i < kQueries; ++i) highest[i] = -FLT_MAX, sums[i] = 0.0f;
  for (int64_t first = 0; first < frames; first += kTile) {
    const int64_t frame = first + thread;
    float energies[kQueries] = {};
    if (frame < frames) {
      const float *key = group.key(frame), *shift = group.shift(frame);
      if (key) add_products(queries, key, key_size, energies);
      if (shift) add_products(queries, shift, key_size, energies);
#pragma unroll
      for (int i = 0; i < kQueries; ++i)
        if (!key) energies[i] = NAN;
    }
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      if (frame >= group.length(i)) energies[i] = -INFINITY;
      float most = energies[i];
      for (int offset = kWarp / 2; offset > 0; offset /= 2)
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, offset));
      if (lane == 0) of_warps[i * kWarps + warp] = most;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      float most = highest[i];
      for (int other = 0; other < kWarps; ++other) most = fmaxf(most, of_warps[i * kWarps + other]);
      const float weight = expf(energies[i] - most), factor = expf(highest[i] - most);
      weights[i * kTile + thread] = weight;
      sums[i] = sums[i] * factor + weight;
      highest[i] = most;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) results[i][c] *= factor;
    }
    __syncthreads();
    const int n = static_cast<int>(min(static_cast<long long>(frames - first), static_cast<long long>(kTile)));
#pragma unroll(kQueries == 1 ? 4 : 2)
    for (int j = warp; j < n; j += kWarps) {
      const float* value = group.value(first + j);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int64_t u = column + c * kWarp + lane;
        const float x = value && u < value_size ? value[u] : 0.0f;
#pragma unroll
        for (int i = 0; i < kQueries; ++i) results[i][c] += weights[i * kTile + j] * x;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    const float sum = team_sum<kThreads>(sums[i], of_warps);  // after it the parts of the query before have been read
#pragma unroll
    for (int c = 0; c < kColumns; ++c) parts[warp * kWidth + c * kWarp + lane] = results[i][c];
    __syncthreads();
    float result = 0.0f;
    for (int other = 0; other < kWarps; ++other) result += parts[other * kWidth + thread];
    float* y = group.y(i);
    if (y && column + thread < value_size) y[column + thread] = group.length(i) > 0 ? result / sum : 0.0f;
  }
}

template <class Frames>
const char* run(const Frames& all, int64_t groups, int64_t heads, int64_t key_size, int64_t value_size,
                cudaStream_t stream) {
  const int64_t parts = value_size > kWidth ? (value_size + kWidth - 1) / kWidth : 1;
  if (groups > 0x7fffffff || heads > 0xffff || parts > 0xffff)
    return "more heads or numbers than a GPU kernel can count";
  const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>(heads), static_cast<unsigned>(parts));
  const cudaError_t error =
      launch(attend<Frames>, grid, kThreads, shared_floats<Frames>(key_size) * sizeof(float), stream, all);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace
}  // namespace rtf

extern "C" {

const char* rtf_beam_attention_cuda_f32(const RtfBeamAttention* shape, const float* qkv, const int32_t* rows,
                                        const float* shift, const float* keys_before, const float* values_before,
                                        float* keys, float* values, float* y, int32_t* next_rows, void* stream) {
  const RtfBeamAttention& s = *shape;
  const auto gpu = static_cast<cudaStream_t>(stream);
  const int64_t frames = s.steps * s.entries * s.heads * sizeof(float);
  cudaError_t error = cudaSuccess;
  if (frames * s.key > 0 && keys_before != keys)
    error = cudaMemcpyAsync(keys, keys_before, frames * s.key, cudaMemcpyDeviceToDevice, gpu);
  if (error == cudaSuccess && frames * s.value > 0 && values_before != values)
    error = cudaMemcpyAsync(values, values_before, frames * s.value, cudaMemcpyDeviceToDevice, gpu);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (s.entries == 0) return nullptr;
  return rtf::run(rtf::OwnFrames{s, qkv, rows, shift, keys, values, y, next_rows}, s.entries, s.heads, s.key, s.value,
                  gpu);
}

const char* rtf_once_attention_cuda_f32(const RtfOnce* shape, int64_t value_size, float scale, const float* queries,
                                        const float* keys, const float* values, const int32_t* lengths, float* y,
                                        void* stream) {
  const RtfOnce& s = *shape;
  if (s.batch * s.beam * s.heads * value_size == 0) return nullptr;
  const int64_t groups = (s.beam + rtf::kOnceQueries - 1) / rtf::kOnceQueries;
  return rtf::run(rtf::SharedFrames{s, value_size, scale, queries, keys, values, lengths, y}, s.batch * groups, s.heads,
                  s.size, value_size, static_cast<cudaStream_t>(stream));
}
}
