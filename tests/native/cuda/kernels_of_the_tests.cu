// Kernels that are right and kernels that are wrong, for the tests of the emulator. nvcc compiles them too.
#include "common/cuda/mma.h"
#include "common/cuda/philox.h"
#include "mdlstm/cuda_team.h"

namespace {

using namespace rtf;

// Reverses n <= blockDim.x numbers through shared memory; wrong without its barrier.
template <bool barrier>
__global__ void reverse(const float* x, float* y, int n) {
  float* all = dynamic_shared<float>();
  if (threadIdx.x < n) all[threadIdx.x] = x[threadIdx.x];
  if (barrier) __syncthreads();
  if (threadIdx.x < n) y[threadIdx.x] = all[n - 1 - threadIdx.x];
}

// Half of the threads wait for the other half, which wait for them elsewhere.
__global__ void deadlock(const float* x, float* y, int n) {
  if (threadIdx.x < n / 2)
    __shfl_sync(kAllLanes, x[threadIdx.x], 0);
  else
    __syncthreads();
  y[threadIdx.x] = 0;
}

// Every thread waits for a number that nobody writes.
__global__ void endless(const unsigned* x) {
  while (load_acquire(x) == 0) spin_pause();
}

// Waits until all blocks of a cooperative launch are here. counter: in global memory, 0 before the launch.
__device__ __forceinline__ void grid_barrier(unsigned* counter, unsigned blocks) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned ticket = add_release(counter, 1u);
    const unsigned end = ticket - ticket % blocks + blocks;
    while (load_acquire(counter) < end) spin_pause();
  }
  __syncthreads();
}

// Steps through y[step] = sum of y[step - 1] + x over all blocks, one number per block.
template <bool barrier>
__global__ void steps(const float* x, float* y, unsigned* counter, int n_steps) {
  const int n = gridDim.x;
  for (int step = 1; step <= n_steps; ++step) {
    if (threadIdx.x == 0) {
      float sum = x[blockIdx.x];
      for (int i = 0; i < n; ++i) sum += 0.5f * __ldcg(&y[(step - 1) * n + i]);
      y[step * n + blockIdx.x] = sum;
    }
    if (barrier) grid_barrier(counter, n);
  }
}

// Sums of x by all threads again and again, through shared memory with one barrier per round: wrong with one buffer in
// place of two that take turns, as a slow thread may find there what a fast one wrote in the next round.
template <int buffers>
__global__ void rounds(const float* x, float* y, int n_rounds) {
  float* all = dynamic_shared<float>();
  const unsigned n = blockDim.x;
  float mine = x[threadIdx.x];
  for (int round = 0; round < n_rounds; ++round) {
    float* here = all + round % buffers * n;
    here[threadIdx.x] = mine;
    __syncthreads();
    mine = 0.5f * (here[threadIdx.x] + here[(threadIdx.x + 40) % n]);
  }
  y[threadIdx.x] = mine;
}

// y: for each thread its value after a shuffle of every kind and what the votes say, of 8 + 3 numbers.
__global__ void warps(const float* x, float* y) {
  const float value = x[threadIdx.x];
  float* out = y + 11 * threadIdx.x;
  out[0] = __shfl_sync(kAllLanes, value, 5);
  out[1] = __shfl_sync(kAllLanes, value, 3, 8);
  out[2] = __shfl_up_sync(kAllLanes, value, 2);
  out[3] = __shfl_up_sync(kAllLanes, value, 2, 8);
  out[4] = __shfl_down_sync(kAllLanes, value, 3);
  out[5] = __shfl_down_sync(kAllLanes, value, 3, 16);
  out[6] = __shfl_xor_sync(kAllLanes, value, 4);
  float sum = value;
  for (int delta = 16; delta > 0; delta /= 2) sum += __shfl_xor_sync(kAllLanes, sum, delta);
  out[7] = sum;
  out[8] = __popc(__ballot_sync(kAllLanes, value > 0));
  out[9] = __any_sync(kAllLanes, value > 1.5f);
  out[10] = __all_sync(kAllLanes, value > -1.5f);
}

// D = A B for tiles of 16 x K and K x 8, K = 8 as tf32 (which 0) or 16 as bfloat16 (1) or half precision (2), or 8 as
// bfloat16 (3).
template <int which>
__global__ void product(const float* a, const float* b, float* d) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  float sums[4] = {};
  uint32_t of_a[4], of_b[2];
  if (which == 0) {
    for (int i = 0; i < 4; ++i) of_a[i] = to_tf32(a[(g + i % 2 * 8) * 8 + t + i / 2 * 4]);
    for (int i = 0; i < 2; ++i) of_b[i] = to_tf32(b[(t + i * 4) * 8 + g]);
    mma_m16n8k8_tf32(sums, of_a, of_b);
  } else {
    const auto pack = [](float low, float high) {
      uint32_t bits;
      const __nv_bfloat162 as_bf16 = __floats2bfloat162_rn(low, high);
      const __half2 as_half = __floats2half2_rn(low, high);
      if (which == 2)
        memcpy(&bits, &as_half, 4);
      else
        memcpy(&bits, &as_bf16, 4);
      return bits;
    };
    constexpr int kHalves = which == 3 ? 1 : 2;
    for (int i = 0; i < 2 * kHalves; ++i) {
      const float* row = a + (g + i % 2 * 8) * 8 * kHalves + 2 * t + i / 2 * 8;
      of_a[i] = pack(row[0], row[1]);
    }
    for (int i = 0; i < kHalves; ++i) {
      const float* column = b + (2 * t + i * 8) * 8 + g;
      of_b[i] = pack(column[0], column[8]);
    }
    if (which == 1)
      mma_m16n8k16_bf16(sums, of_a, of_b);
    else if (which == 3)
      mma_m16n8k8_bf16(sums, of_a, of_b[0]);
    else
      mma_m16n8k16_f16(sums, of_a, of_b);
  }
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}

// Copies n numbers by cp_async in tiles of 4 per thread, one tile ahead; wrong without waiting.
template <bool wait>
__global__ void copy(const float* x, float* y, int n) {
  float* tiles = dynamic_shared<float>();
  const int width = 4 * blockDim.x, mine = 4 * threadIdx.x;
  const auto begin = [&](int tile) {
    const int at = tile * width + mine, left = n - at;
    cp_async16(tiles + tile % 2 * width + mine, left > 0 ? x + at : x, left >= 4 ? 16 : left > 0 ? 4 * left : 0);
    cp_async_commit();
  };
  begin(0);
  for (int tile = 0; tile * width < n; ++tile) {
    begin(tile + 1);
    if (wait) cp_async_wait<1>();
    __syncthreads();
    const int other = (threadIdx.x + 1) % blockDim.x;  // what another thread has copied
    for (int i = 4 * other; i < 4 * other + 4; ++i)
      if (tile * width + i < n) y[tile * width + i] = tiles[tile % 2 * width + i];
    __syncthreads();
  }
}

// y = the first and the last number of a vector.
__global__ void read_vector(const float* x, float* y) {
  const float4 four = *reinterpret_cast<const float4*>(x);
  *reinterpret_cast<float2*>(y) = make_float2(four.x, four.w);
}

// A histogram, and the largest number, by atomics of several blocks.
__global__ void count(const int* x, int* counts, int* most, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const int value = x[i];
    atomicAdd(&counts[value], 1);
    atomicMax(most, value);
  }
}

// Places in a ring with more than 2^31 numbers.
__global__ void far_places(int64_t side, int stride, int slot, int64_t* places) {
  const uintptr_t start = 4096;
  const mdlstm::Ring ring{reinterpret_cast<float*>(start), side, stride};
  for (int diagonal = 0; diagonal < 2; ++diagonal)
    places[diagonal] =
        static_cast<int64_t>((reinterpret_cast<uintptr_t>(ring.at(diagonal, slot)) - start) / sizeof(float));
}

__global__ void compare_counters(const unsigned* counters, const unsigned* numbers, int* reached, int count) {
  for (int i = 0; i < count; ++i) reached[i] = has_reached(counters[i], numbers[i]);
}

__global__ void draw(uint64_t key, uint64_t low, uint64_t high, uint64_t first, unsigned* numbers, int groups) {
  for (int i = 0; i < groups; ++i) {
    const uint4 four = philox_group(key, low, high, first + i);
    const unsigned all[] = {four.x, four.y, four.z, four.w};
    for (int j = 0; j < 4; ++j) numbers[4 * i + j] = all[j];
  }
}

#if RTF_CUDA_EMULATION
const cudaStream_t kStream = emulation::stream();
#else
const cudaStream_t kStream = nullptr;
#endif

const char* text(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

}  // namespace

extern "C" {

const char* test_reverse(const float* x, float* y, int n, int threads, int shared_bytes, int barrier) {
  return text(launch(barrier ? reverse<true> : reverse<false>, 1, threads, shared_bytes, kStream, x, y, n));
}

// Work on the default stream: a kernel, a copy, zeros, a function of the host, or waiting for it.
const char* test_default_stream(const float* x, float* y, int which) {
  switch (which) {
    case 0: return text(launch(reverse<true>, 1, 32, 4, nullptr, x, y, 1));
    case 1: return text(cudaMemcpyAsync(y, x, 4, cudaMemcpyDeviceToDevice));
    case 2: return text(cudaMemsetAsync(y, 0, 4));
    case 3:
      return text(cudaLaunchHostFunc(
          nullptr, [](void*) {}, nullptr));
    default: return text(cudaStreamSynchronize(nullptr));
  }
}

const char* test_deadlock(const float* x, float* y) { return text(launch(deadlock, 2, 32, 0, kStream, x, y, 32)); }

const char* test_endless(const unsigned* x, int cooperative) {
  return text(cooperative ? launch_cooperative(endless, 2, 32, 0, kStream, x) : launch(endless, 2, 32, 0, kStream, x));
}

const char* test_steps(const float* x, float* y, unsigned* counter, int n_steps, int blocks, int threads, int barrier) {
  return text(
      launch_cooperative(barrier ? steps<true> : steps<false>, blocks, threads, 0, kStream, x, y, counter, n_steps));
}

const char* test_rounds(const float* x, float* y, int n_rounds, int threads, int buffers) {
  return text(
      launch(buffers == 2 ? rounds<2> : rounds<1>, 1, threads, 2 * threads * sizeof(float), kStream, x, y, n_rounds));
}

const char* test_warps(const float* x, float* y) { return text(launch(warps, 1, 32, 0, kStream, x, y)); }

const char* test_product(int which, const float* a, const float* b, float* d) {
  const auto kernel = which == 0 ? product<0> : which == 1 ? product<1> : which == 2 ? product<2> : product<3>;
  return text(launch(kernel, 1, 32, 0, kStream, a, b, d));
}

const char* test_copy(const float* x, float* y, int n, int threads, int wait) {
  return text(launch(wait ? copy<true> : copy<false>, 1, threads, 2 * threads * 16, kStream, x, y, n));
}

const char* test_vector(const float* x, float* y, int x_from, int y_from) {
  return text(launch(read_vector, 1, 1, 0, kStream, x + x_from, y + y_from));
}

const char* test_far_places(int side, int stride, int slot, int64_t* places) {
  return text(launch(far_places, 1, 1, 0, kStream, int64_t{side} * stride, stride, slot, places));
}

const char* test_counters(const unsigned* counters, const unsigned* numbers, int* reached, int count) {
  return text(launch(compare_counters, 1, 1, 0, kStream, counters, numbers, reached, count));
}

const char* test_count(const int* x, int* counts, int* most, int n, int blocks, int threads) {
  return text(launch(count, blocks, threads, 0, kStream, x, counts, most, n));
}

const char* test_philox(const uint64_t* state, unsigned* numbers, int groups) {
  return text(launch(draw, 1, 1, 0, kStream, state[0], state[1], state[2], state[3], numbers, groups));
}
}
