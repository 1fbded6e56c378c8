// Selective state spaces on the GPU: a thread has one channel of one sequence, over all frames. It keeps up to kGroup
// of its states in registers; with more, it goes through the frames once for each group. The gradients of b and c are
// sums over channels: a warp adds up its 32 channels, and a second kernel the warps.
#include "../common/both.h"
#include "../common/cuda/lengths.h"
#include "selective_scan.h"

namespace rtf {
namespace {

constexpr int kThreads = 64;
constexpr int kGroup = 16;
static_assert(2 * kGroup == kWarp, "a lane gets the sum of one gradient of b or c");

// Blocks for a sequence.
RTF_BOTH inline unsigned blocks_of(const RtfSequences& s) {
  return static_cast<unsigned>((s.units + kThreads - 1) / kThreads);
}

// The place of a thread, the same sequence for all of a block.
struct Place {
  int64_t row, channel, length;
  bool active;  // whether there is such a channel

  __device__ __forceinline__ explicit Place(const RtfSequences& s) {
    row = blockIdx.x / blocks_of(s);
    channel = blockIdx.x % blocks_of(s) * static_cast<int64_t>(kThreads) + threadIdx.x;
    active = channel < s.units;
    length = length_of(s, row);
  }

  // Index in [frames, batch] of a step.
  __device__ __forceinline__ int64_t frame(const RtfSequences& s, int64_t step) const {
    return (s.reverse ? length - 1 - step : step) * s.batch + row;
  }
};

__global__ void __launch_bounds__(kThreads)
    forward(RtfSelectiveShape shape, RtfSelectiveInputs in, float* y, float* h_last, float* checkpoints) {
  const RtfSequences& s = shape.sequences;
  const Place place(s);
  if (!place.active) return;
  const int64_t width = s.units, states = shape.states, d = place.channel;
  const float skip = in.d[d];
  for (int64_t first = 0; first < states; first += kGroup) {
    float a[kGroup], h[kGroup];
#pragma unroll
    for (int n = 0; n < kGroup; ++n) {
      const bool there = first + n < states;
      a[n] = there ? in.a[(first + n) * width + d] : 0.0f;
      h[n] = there ? in.h0[(place.row * states + first + n) * width + d] : 0.0f;
    }
    for (int64_t step = 0; step < place.length; ++step) {
      if (step % RTF_SELECTIVE_CHUNK == 0) {
        float* kept = checkpoints + (step / RTF_SELECTIVE_CHUNK * s.batch + place.row) * states * width;
#pragma unroll
        for (int n = 0; n < kGroup; ++n)
          if (first + n < states) kept[(first + n) * width + d] = h[n];
      }
      const int64_t frame = place.frame(s, step), at = frame * width + d;
      const float x = in.x[at], delta = in.delta[at], input = delta * x;
      const float *b = in.b + frame * states + first, *c = in.c + frame * states + first;
      float sum = first == 0 ? skip * x : y[at];
#pragma unroll
      for (int n = 0; n < kGroup; ++n) {
        if (first + n >= states) continue;
        h[n] = expf(delta * a[n]) * h[n] + input * b[n];
        sum += c[n] * h[n];
      }
      y[at] = sum;
    }
#pragma unroll
    for (int n = 0; n < kGroup; ++n)
      if (first + n < states) h_last[(place.row * states + first + n) * width + d] = h[n];
  }
  for (int64_t t = place.length; t < s.frames; ++t) y[(t * s.batch + place.row) * width + d] = 0.0f;
}

// The sum over the lanes of values[lane]: each lane gives half of its numbers for half of those of another one, until
// it has one.
template <int kHalf = kWarp / 2>
__device__ __forceinline__ float sums_to_lanes(float (&values)[kWarp], int lane) {
  const bool upper = lane & kHalf;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float given = upper ? values[i] : values[i + kHalf], kept = upper ? values[i + kHalf] : values[i];
    values[i] = kept + __shfl_xor_sync(kAllLanes, given, kHalf);
  }
  if constexpr (kHalf > 1) return sums_to_lanes<kHalf / 2>(values, lane);
  return values[0];
}

// One group of states, over all frames. Threads without a channel take part in the sums, with zeros.
__device__ void backward_of_group(const RtfSelectiveShape& shape, const RtfSelectiveInputs& in, const Place& place,
                                  int64_t first, const float* checkpoints, const float* dy, const float* dh_last,
                                  const RtfSelectiveGradients& out, float* before, float* sums) {
  const RtfSequences& s = shape.sequences;
  const int64_t width = s.units, states = shape.states, d = place.channel;
  const int lane = threadIdx.x % kWarp;
  float a[kGroup], g[kGroup], da[kGroup], d_skip = 0.0f;
  const float skip = place.active ? in.d[d] : 0.0f;
#pragma unroll
  for (int n = 0; n < kGroup; ++n) {
    const bool there = place.active && first + n < states;
    a[n] = there ? in.a[(first + n) * width + d] : 0.0f;
    g[n] = there ? dh_last[(place.row * states + first + n) * width + d] : 0.0f;
    da[n] = 0.0f;
  }
  for (int64_t end = place.length; end > 0;) {
    const int64_t begin = (end - 1) / RTF_SELECTIVE_CHUNK * RTF_SELECTIVE_CHUNK;
    if (place.active) {  // the states before each step, again
      const float* kept = checkpoints + (begin / RTF_SELECTIVE_CHUNK * s.batch + place.row) * states * width;
      float h[kGroup];
#pragma unroll
      for (int n = 0; n < kGroup; ++n) h[n] = first + n < states ? kept[(first + n) * width + d] : 0.0f;
      for (int64_t step = begin; step < end; ++step) {
        const int64_t frame = place.frame(s, step), at = frame * width + d;
        const float delta = in.delta[at], input = delta * in.x[at];
        const float* b = in.b + frame * states + first;
#pragma unroll
        for (int n = 0; n < kGroup; ++n) {
          before[((step - begin) * kGroup + n) * width + d] = h[n];
          if (first + n < states) h[n] = expf(delta * a[n]) * h[n] + input * b[n];
        }
      }
    }
    for (int64_t step = end - 1; step >= begin; --step) {
      const int64_t frame = place.frame(s, step), at = frame * width + d;
      float values[kWarp], d_input = 0.0f, d_delta = 0.0f;
      const float x = place.active ? in.x[at] : 0.0f, delta = place.active ? in.delta[at] : 0.0f, input = delta * x;
      const float gradient = place.active ? dy[at] : 0.0f;
#pragma unroll
      for (int n = 0; n < kGroup; ++n) {
        const bool there = place.active && first + n < states;
        const float b = there ? in.b[frame * states + first + n] : 0.0f;
        const float c = there ? in.c[frame * states + first + n] : 0.0f;
        const float h = there ? before[((step - begin) * kGroup + n) * width + d] : 0.0f;
        const float factor = expf(delta * a[n]), now = g[n] + c * gradient, decayed = now * factor;
        values[n] = there ? now * input : 0.0f;
        values[kGroup + n] = there ? gradient * (factor * h + input * b) : 0.0f;
        d_input += now * b;
        d_delta += decayed * h * a[n];
        da[n] += decayed * h * delta;
        g[n] = decayed;
      }
      const float sum = sums_to_lanes(values, lane);
      const int64_t n = first + lane % kGroup;
      if (n < states) sums[(lane / kGroup * s.frames * s.batch + frame) * states + n] = sum;
      if (!place.active) continue;
      if (first == 0) d_skip += gradient * x;
      out.x[at] = (first == 0 ? gradient * skip : out.x[at]) + d_input * delta;
      out.delta[at] = (first == 0 ? 0.0f : out.delta[at]) + d_input * x + d_delta;
    }
    end = begin;
  }
  if (!place.active) return;
  if (first == 0) out.d[place.row * width + d] = d_skip;
#pragma unroll
  for (int n = 0; n < kGroup; ++n) {
    if (first + n >= states) continue;
    out.h0[(place.row * states + first + n) * width + d] = g[n];
    out.a[(place.row * states + first + n) * width + d] = da[n];
  }
}

int64_t warps_of(const RtfSelectiveShape& shape) { return (shape.sequences.units + kWarp - 1) / kWarp; }

// Scratch memory: states before the steps of a chunk [B, chunk, kGroup, H], and the sums of the warps [warps, 2, T, B,
// N].
int64_t size_of_states(const RtfSelectiveShape& shape) {
  return shape.sequences.batch * RTF_SELECTIVE_CHUNK * kGroup * shape.sequences.units;
}

int64_t size_of_sums(const RtfSelectiveShape& shape) {
  return warps_of(shape) * 2 * shape.sequences.frames * shape.sequences.batch * shape.states;
}

__global__ void __launch_bounds__(kThreads, 1)
    backward(RtfSelectiveShape shape, RtfSelectiveInputs in, const float* checkpoints, const float* dy,
             const float* dh_last, RtfSelectiveGradients out, float* before, float* sums) {
  const RtfSequences& s = shape.sequences;
  const Place place(s);
  const int64_t warp = place.channel / kWarp, width = s.units;
  if (warp * kWarp >= width) return;  // a whole warp without channels
  for (int64_t first = 0; first < shape.states; first += kGroup)
    backward_of_group(shape, in, place, first, checkpoints, dy, dh_last, out,
                      before + place.row * RTF_SELECTIVE_CHUNK * kGroup * width,
                      sums + warp * 2 * s.frames * s.batch * shape.states);
  if (!place.active) return;
  for (int64_t t = place.length; t < s.frames; ++t) {
    const int64_t at = (t * s.batch + place.row) * width + place.channel;
    out.x[at] = out.delta[at] = 0.0f;
  }
}

__global__ void add_warps(RtfSelectiveShape shape, int64_t warps, const float* sums, float* db, float* dc) {
  const RtfSequences& s = shape.sequences;
  const int64_t size = s.frames * s.batch * shape.states;
  const int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i >= 2 * size) return;
  const int64_t at = i % size, row = at / shape.states % s.batch, t = at / shape.states / s.batch;
  float sum = 0.0f;
  if (!s.lengths || t < s.lengths[row])
    for (int64_t warp = 0; warp < warps; ++warp) sum += sums[warp * 2 * size + i];
  (i < size ? db : dc)[at] = sum;
}

unsigned grid_of(const RtfSelectiveShape& shape) {
  return blocks_of(shape.sequences) * static_cast<unsigned>(shape.sequences.batch);
}

const char* text_of(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_selective_cuda_scratch_size(const RtfSelectiveShape* shape) {
  return rtf::size_of_states(*shape) + rtf::size_of_sums(*shape);
}

const char* rtf_selective_forward_cuda_f32(const RtfSelectiveShape* shape, const RtfSelectiveInputs* inputs, float* y,
                                           float* h_last, float* checkpoints, void* stream) {
  if (shape->sequences.batch == 0) return nullptr;
  return rtf::text_of(rtf::launch(rtf::forward, rtf::grid_of(*shape), rtf::kThreads, 0,
                                  static_cast<cudaStream_t>(stream), *shape, *inputs, y, h_last, checkpoints));
}

const char* rtf_selective_backward_cuda_f32(const RtfSelectiveShape* shape, const RtfSelectiveInputs* inputs,
                                            const float* checkpoints, const float* dy, const float* dh_last,
                                            const RtfSelectiveGradients* gradients, float* scratch, void* stream) {
  const RtfSequences& s = shape->sequences;
  if (s.batch == 0) return nullptr;
  float* sums = scratch + rtf::size_of_states(*shape);
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  const cudaError_t error = rtf::launch(rtf::backward, rtf::grid_of(*shape), rtf::kThreads, 0, on, *shape, *inputs,
                                        checkpoints, dy, dh_last, *gradients, scratch, sums);
  const int64_t size = 2 * s.frames * s.batch * shape->states;
  if (error != cudaSuccess || size == 0) return rtf::text_of(error);
  const unsigned blocks = static_cast<unsigned>((size + rtf::kThreads - 1) / rtf::kThreads);
  return rtf::text_of(rtf::launch(rtf::add_warps, blocks, rtf::kThreads, 0, on, *shape, rtf::warps_of(*shape), sums,
                                  gradients->b, gradients->c));
}
}
