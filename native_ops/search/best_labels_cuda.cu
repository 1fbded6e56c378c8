// The best labels of each hypothesis on the GPU: one block per row.
//
// Each thread finds the highest of its entries. The count-th highest of these is a limit that at least `count` entries
// reach, and seldom many more: they are collected in shared memory, in their order, and ranked there. If they don't
// fit, as with many equal ones, the limit is raised to the count-th highest entry by bisection.
#include "../common/cuda/sums.h"
#include "best_labels_cuda.h"

namespace rtf {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

struct Candidates {
  uint32_t keys[RTF_MOST_BEST_LABELS];
  int32_t labels[RTF_MOST_BEST_LABELS];
  uint32_t highest[kThreads];
  int counts[kWarps];
  float sums[kWarps];
  uint32_t limit;
  int total;
  float best;
};

// In the order of the floats, above 0. Of 0 and -0 it is the same, of NaN the highest.
__device__ __forceinline__ uint32_t key_of(const float* x) {
  const float value = __ldg(x) + 0.0f;
  const uint32_t bits = __float_as_uint(value);
  return value != value ? 0xffffffffu : (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// A limit that at least `count` keys reach; 0 if the threads are too few to tell.
__device__ uint32_t limit_of_best(const float* x, int64_t labels, int64_t count, Candidates* shared) {
  uint32_t own = 0;
  for (int64_t i = threadIdx.x; i < labels; i += kThreads) own = max(own, key_of(x + i));
  shared->highest[threadIdx.x] = own;
  if (threadIdx.x == 0) shared->limit = 0;
  __syncthreads();
  int rank = 0;
  for (int other = 0; other < kThreads; ++other) {
    const uint32_t key = shared->highest[other];
    rank += key > own || (key == own && other < static_cast<int>(threadIdx.x));
  }
  if (rank == count - 1) shared->limit = own;
  __syncthreads();
  return shared->limit;
}

__device__ int count_from(uint32_t limit, const float* x, int64_t labels, Candidates* shared) {
  __syncthreads();  // the last count has been read
  if (threadIdx.x == 0) shared->total = 0;
  __syncthreads();
  int own = 0;
  for (int64_t i = threadIdx.x; i < labels; i += kThreads) own += key_of(x + i) >= limit;
  if (own > 0) atomicAdd(&shared->total, own);
  __syncthreads();
  return shared->total;
}

// Appends the entries with keys from first to last, in their order, to `found` ones, until there are `most`. Returns
// their number.
__device__ int collect(uint32_t first, uint32_t last, const float* x, int64_t labels, int found, int most,
                       Candidates* shared) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int64_t begin = 0; begin < labels && found < most; begin += kThreads) {
    const int64_t i = begin + threadIdx.x;
    const uint32_t key = i < labels ? key_of(x + i) : 0;
    const bool is_one = key >= first && key <= last;
    const unsigned lanes = __ballot_sync(kAllLanes, is_one);
    if (lane == 0) shared->counts[warp] = __popc(lanes);
    __syncthreads();
    int at = found + __popc(lanes & ((1u << lane) - 1));
    for (int other = 0; other < kWarps; ++other) {
      if (other < warp) at += shared->counts[other];
      found += shared->counts[other];
    }
    if (is_one && at < most) {
      shared->keys[at] = key;
      shared->labels[at] = static_cast<int32_t>(i);
    }
    __syncthreads();
  }
  return min(found, most);
}

__global__ void __launch_bounds__(kThreads)
    best_labels(int64_t labels, int64_t count, const float* x, float* values, int32_t* indices, float* log_sums) {
  Candidates* shared = dynamic_shared<Candidates>();
  const int64_t row = blockIdx.x;
  const int wanted = static_cast<int>(count);
  constexpr uint32_t kHighest = 0xffffffffu;
  x += row * labels;
  uint32_t limit = max(limit_of_best(x, labels, count, shared), 1u);
  int found;
  if (count_from(limit, x, labels, shared) <= RTF_MOST_BEST_LABELS) {
    found = collect(limit, kHighest, x, labels, 0, RTF_MOST_BEST_LABELS, shared);
  } else {
    for (uint32_t high = kHighest; limit < high;) {
      const uint32_t middle = high - (high - limit) / 2;
      if (count_from(middle, x, labels, shared) >= wanted)
        limit = middle;
      else
        high = middle - 1;
    }
    found = limit < kHighest ? collect(limit + 1, kHighest, x, labels, 0, wanted, shared) : 0;
    found = collect(limit, limit, x, labels, found, wanted, shared);
  }
  for (int one = threadIdx.x; one < found; one += kThreads) {
    const uint32_t key = shared->keys[one];
    int rank = 0;
    for (int other = 0; other < found; ++other)
      rank += shared->keys[other] > key || (shared->keys[other] == key && other < one);
    if (rank >= wanted) continue;
    const int32_t label = shared->labels[one];
    values[row * count + rank] = x[label];
    indices[row * count + rank] = label;
    if (rank == 0) shared->best = x[label];
  }
  __syncthreads();
  const float best = shared->best;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < labels; i += kThreads) sum += expf(__ldg(x + i) - best);
  sum = team_sum<kThreads>(sum, shared->sums);
  if (threadIdx.x == 0) log_sums[row] = logf(sum);
}

}  // namespace
}  // namespace rtf

extern "C" const char* rtf_best_labels_cuda_f32(int64_t rows, int64_t labels, int64_t count, const float* x,
                                                float* values, int32_t* indices, float* log_sums, void* stream) {
  if (rows == 0) return nullptr;
  if (count > RTF_MOST_BEST_LABELS) return "too many labels are wanted";
  const cudaError_t error =
      rtf::launch(rtf::best_labels, static_cast<unsigned>(rows), rtf::kThreads, sizeof(rtf::Candidates),
                  static_cast<cudaStream_t>(stream), labels, count, x, values, indices, log_sums);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
