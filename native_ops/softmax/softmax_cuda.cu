// Cross entropy of a softmax on the GPU: a block has a frame. It reads the logits twice: for the maximum and the sums,
// and for the gradient, which takes their place.
#include <float.h>

#include "../common/cuda/device.h"
#include "softmax_cuda.h"

namespace rtf {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// Of some logits: the greatest and the first label that has it, the sum of exp(logit - most), and of the logits.
struct Logits {
  float most = -FLT_MAX, sum = 0.0f, plain = 0.0f;
  int64_t best = INT64_MAX;

  __device__ __forceinline__ void add(float logit, int64_t label) {
    const float e = __expf(-fabsf(logit - most));  // NaN if the logit is, or if it is a second infinity
    if (logit > most) {
      sum = sum * e + 1.0f;
      most = logit;
      best = label;
    } else {
      sum += e;
      if (logit == most && label < best) best = label;
    }
    plain += logit;
  }

  // The same for two of them in any order.
  __device__ __forceinline__ void add(const Logits& other) {
    const float higher = fmaxf(most, other.most);
    sum = sum * __expf(most - higher) + other.sum * __expf(other.most - higher);
    if (other.most > most || (other.most == most && other.best < best)) best = other.best;
    most = higher;
    plain += other.plain;
  }

  __device__ __forceinline__ Logits of_lane(int bits) const {
    Logits other;
    other.most = __shfl_xor_sync(kAllLanes, most, bits);
    other.sum = __shfl_xor_sync(kAllLanes, sum, bits);
    other.plain = __shfl_xor_sync(kAllLanes, plain, bits);
    other.best = __shfl_xor_sync(kAllLanes, best, bits);
    return other;
  }
};

// The logits of all threads, in each of them. shared: one for each warp.
__device__ __forceinline__ Logits of_block(Logits mine, Logits* shared) {
  for (int bits = kWarp / 2; bits >= 1; bits /= 2) mine.add(mine.of_lane(bits));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mine;
  __syncthreads();
  Logits all = shared[0];
  for (int warp = 1; warp < kWarps; ++warp) all.add(shared[warp]);
  return all;
}

__global__ void __launch_bounds__(kThreads)
    cross_entropy(RtfSoftmaxCe s, const float* z, const float* bias, const int32_t* target, float* values,
                  float* errors, float* gradient) {
  const int64_t frame = blockIdx.x, label = target[frame];
  const float* row = z + frame * s.labels;
  const bool there = label >= 0 && label < s.labels;  // the host can't check it
  const float of_label = there ? row[label] + bias[label] : NAN;
  Logits mine;
#pragma unroll 4
  for (int64_t k = threadIdx.x; k < s.labels; k += kThreads) mine.add(row[k] + bias[k], k);
  const Logits all = of_block(mine, dynamic_shared<Logits>());
  const float most = all.most, sum = all.sum + (most - most), x = of_label - most;  // a sum over infinity is NaN
  float c = logf(sum) - (s.on - s.off) * x;
  if (s.off != 0.0f) c -= s.off * (all.plain - static_cast<float>(s.labels) * most);
  c -= s.entropy;
  float weight = 1.0f, slope = 0.0f;
  if (s.focal != 0.0f) {
    const float p = __expf(x) / sum, missed = p == p ? fmaxf(1.0f - p, 1e-12f) : p;
    weight = powf(missed, s.focal);
    slope = s.focal * c * weight / missed * (1.0f - missed);
  }
  if (threadIdx.x == 0) {
    values[frame] = c * weight;
    errors[frame] = all.best == label ? 0.0f : 1.0f;
  }
  if (!gradient) return;
  // of_label is NaN without a label
  const float factor = (weight + slope) / sum + (of_label - of_label), less = weight * s.off;
  float* out = gradient + frame * s.labels;
#pragma unroll 4
  for (int64_t k = threadIdx.x; k < s.labels; k += kThreads) {
    float g = __expf(row[k] + bias[k] - most) * factor - less;
    if (k == label) g -= weight * (s.on - s.off) + slope;
    out[k] = g;
  }
}

}  // namespace
}  // namespace rtf

extern "C" {

const char* rtf_softmax_ce_cuda_f32(const RtfSoftmaxCe* shape, const float* z, const float* bias, const int32_t* target,
                                    float* values, float* errors, float* gradient, void* stream) {
  if (shape->frames == 0) return nullptr;
  if (shape->frames > 0x7fffffff) return "softmax: more frames than a GPU kernel can count";
  const cudaError_t error = rtf::launch(rtf::cross_entropy, static_cast<unsigned>(shape->frames), rtf::kThreads,
                                        rtf::kWarps * sizeof(rtf::Logits), static_cast<cudaStream_t>(stream), *shape, z,
                                        bias, target, values, errors, gradient);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
}
