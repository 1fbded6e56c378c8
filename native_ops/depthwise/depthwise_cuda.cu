// Depthwise convolution on the GPU: a lane has a channel, and a block some frames of 32 channels, which it copies to
// shared memory with the frames around them. Frames that are `dilation` apart are a sequence of their own, a phase, so
// that the taps of a filter are adjacent frames whatever the dilation is.
#include "../common/cuda/sums.h"
#include "depthwise.h"

namespace rtf {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kSums = 8;                // of a thread: frames of a result, or taps of a gradient
constexpr int kPiece = kWarps * kSums;  // frames of a block at a time
constexpr int kTaps = 32;               // of a filter at a time
constexpr int kStrip = kPiece + kTaps - 1;
constexpr int64_t kBlocks = 512;  // with sums of the gradient of their own: enough for any GPU

int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The pieces of a batch of results: of each phase of each sequence.
struct Pieces {
  int64_t frames, phases, of_phase, count;

  Pieces(const RtfDepthwise& s, int64_t results) : frames(results) {
    phases = results < s.dilation ? results : s.dilation;
    of_phase = up(up(results, s.dilation), kPiece);
    count = s.batch * phases * of_phase;
  }
};

// A piece: `count` frames of a sequence from `first` on, `dilation` apart.
struct Piece {
  int64_t sequence, first;
  int count;

  __device__ __forceinline__ Piece(const RtfDepthwise& s, const Pieces& pieces, int64_t number) {
    const int64_t phase = number / pieces.of_phase % pieces.phases, begin = number % pieces.of_phase * kPiece;
    sequence = number / pieces.of_phase / pieces.phases;
    first = phase + begin * s.dilation;
    const int64_t left = first < pieces.frames ? (pieces.frames - 1 - first) / s.dilation + 1 : 0;
    count = left < kPiece ? static_cast<int>(left) : kPiece;
  }
};

// The channel of this thread in a group of 32.
struct Channel {
  int64_t number;
  bool there;

  __device__ __forceinline__ Channel(const RtfDepthwise& s, int64_t group)
      : number(group * kWarp + threadIdx.x % kWarp), there(number < s.channels) {}
};

// Copies rows first, first + step, ... of [n_rows, channels] to shared memory [count, 32]; what is not there is 0.
__device__ __forceinline__ void read(const float* from, int64_t n_rows, int64_t width, const Channel& channel,
                                     int64_t first, int64_t step, int count, float* strip) {
  for (int j = threadIdx.x / kWarp; j < count; j += kWarps) {
    const int64_t row = first + j * step;
    const bool there = channel.there && row >= 0 && row < n_rows;
    strip[j * kWarp + threadIdx.x % kWarp] = there ? from[row * width + channel.number] : 0.0f;
  }
}

// to[t] = bias + sum over k of w[k] * from[t + k * dilation - left]; `reversed`: of the filter from its last tap on.
__global__ void __launch_bounds__(kThreads)
    filter(RtfDepthwise s, Pieces pieces, int64_t groups, const float* w, bool reversed, const float* from,
           int64_t n_from, int64_t left, const float* bias, float* to) {
  const int lane = threadIdx.x % kWarp, begin = threadIdx.x / kWarp * kSums;
  const Channel channel(s, blockIdx.x % groups);
  const Piece piece(s, pieces, blockIdx.x / groups);
  float *strip = dynamic_shared<float>(), *weights = strip + kStrip * kWarp;  // [kStrip, 32], [kTaps, 32]
  from += piece.sequence * n_from * s.channels;
  to += (piece.sequence * pieces.frames + piece.first) * s.channels + channel.number;
  float sums[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) sums[i] = bias && channel.there ? bias[channel.number] : 0.0f;
  for (int64_t tap = 0; tap < s.taps; tap += kTaps) {
    const int taps = s.taps - tap < kTaps ? static_cast<int>(s.taps - tap) : kTaps;
    if (tap > 0) __syncthreads();  // the strip before has been read
    read(from, n_from, s.channels, channel, piece.first + tap * s.dilation - left, s.dilation, piece.count + taps - 1,
         strip);
    read(w, s.taps, s.channels, channel, reversed ? s.taps - 1 - tap : tap, reversed ? -1 : 1, taps, weights);
    __syncthreads();
    if (begin >= piece.count) continue;
    float window[2 * kSums - 1];  // the frames that these sums and taps meet
#pragma unroll
    for (int i = 0; i < kSums - 1; ++i) window[i + kSums] = strip[(begin + i) * kWarp + lane];
#pragma unroll
    for (int first = 0; first < kTaps; first += kSums) {
      if (first >= taps) break;
#pragma unroll
      for (int i = 0; i < kSums - 1; ++i) window[i] = window[i + kSums];
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
        if (first + k >= taps) break;  // no products with a weight of 0: a frame may be infinite
        window[k + kSums - 1] = strip[(begin + first + k + kSums - 1) * kWarp + lane];
        const float weight = weights[(first + k) * kWarp + lane];
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[i] += weight * window[i + k];
      }
    }
  }
  if (!channel.there) return;
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    if (begin + i < piece.count) to[(begin + i) * s.dilation * s.channels] = sums[i];
}

// Blocks of a gradient: each adds up some pieces, for 32 channels and kTaps taps of the filter.
struct Parts {
  int64_t groups, chunks, count;

  Parts(const RtfDepthwise& s, const Pieces& pieces) : groups(up(s.channels, kWarp)), chunks(up(s.taps, kTaps)) {
    const int64_t most = up(kBlocks, groups * chunks);
    count = pieces.count < most ? pieces.count : most;
  }
};

// parts [count, taps, channels] and bias_parts [count, channels]. A warp has kSums taps and, if there are few taps, a
// share of the frames of each piece.
__global__ void __launch_bounds__(kThreads) filter_grad(RtfDepthwise s, Pieces pieces, Parts blocks, const float* dy,
                                                        const float* x, float* parts, float* bias_parts) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Channel channel(s, blockIdx.x % blocks.groups);
  const int64_t tap = blockIdx.x / blocks.groups % blocks.chunks * kTaps,
                part = blockIdx.x / blocks.groups / blocks.chunks;
  const int taps = s.taps - tap < kTaps ? static_cast<int>(s.taps - tap) : kTaps;
  const int sets = (taps + kSums - 1) / kSums, shares = kWarps / sets;  // of taps, and of frames
  const int first = warp % sets * kSums, share = warp / sets;
  float *strip = dynamic_shared<float>(), *gradients = strip + kStrip * kWarp;  // [kStrip, 32], [kPiece, 32]
  float sums[kSums] = {}, sum = 0.0f;
  const int64_t last = (part + 1) * pieces.count / blocks.count;
  for (int64_t number = part * pieces.count / blocks.count; number < last; ++number) {
    const Piece piece(s, pieces, number);
    __syncthreads();  // the strips before have been read
    read(x + piece.sequence * s.frames * s.channels, s.frames, s.channels, channel,
         piece.first + tap * s.dilation - s.left, s.dilation, piece.count + taps - 1, strip);
    read(dy + piece.sequence * s.out_frames * s.channels, s.out_frames, s.channels, channel, piece.first, s.dilation,
         piece.count, gradients);
    __syncthreads();
    if (share >= shares) continue;
    const int begin = share * piece.count / shares, end = (share + 1) * piece.count / shares;
    float window[kSums];  // the frames of the taps; those of taps that are not there are not used
#pragma unroll
    for (int k = 1; k < kSums; ++k) window[k] = strip[(begin + first + k - 1) * kWarp + lane];
    for (int t = begin; t < end; ++t) {
      const float gradient = gradients[t * kWarp + lane];
#pragma unroll
      for (int k = 1; k < kSums; ++k) window[k - 1] = window[k];
      window[kSums - 1] = strip[(t + first + kSums - 1) * kWarp + lane];
#pragma unroll
      for (int k = 0; k < kSums; ++k) sums[k] += gradient * window[k];
      sum += gradient;
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kSums; ++k) strip[(warp * kSums + k) * kWarp + lane] = sums[k];
  gradients[warp * kWarp + lane] = sum;
  __syncthreads();
  if (!channel.there) return;
  for (int k = warp; k < taps; k += kWarps) {
    float whole = 0.0f;
    for (int of = 0; of < shares; ++of) whole += strip[(of * sets * kSums + k) * kWarp + lane];
    parts[(part * s.taps + tap + k) * s.channels + channel.number] = whole;
  }
  if (tap > 0 || warp > 0) return;
  float whole = 0.0f;
  for (int of = 0; of < shares; ++of) whole += gradients[of * sets * kWarp + lane];
  bias_parts[part * s.channels + channel.number] = whole;
}

cudaError_t launch_filter(const RtfDepthwise& s, const float* w, bool reversed, const float* from, int64_t n_from,
                          int64_t left, const float* bias, float* to, int64_t n_to, cudaStream_t stream) {
  const Pieces pieces(s, n_to);
  const int64_t groups = up(s.channels, kWarp);
  if (pieces.count * groups == 0) return cudaSuccess;
  return launch(filter, static_cast<unsigned>(pieces.count * groups), kThreads,
                (kStrip + kTaps) * kWarp * sizeof(float), stream, s, pieces, groups, w, reversed, from, n_from, left,
                bias, to);
}

const char* text_of(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

}  // namespace
}  // namespace rtf

extern "C" {

const char* rtf_depthwise_cuda_f32(const RtfDepthwise* s, const float* x, const float* w, const float* bias, float* y,
                                   void* stream) {
  return rtf::text_of(rtf::launch_filter(*s, w, false, x, s->frames, s->left, bias, y, s->out_frames,
                                         static_cast<cudaStream_t>(stream)));
}

int64_t rtf_depthwise_cuda_scratch_size(const RtfDepthwise* s) {
  return rtf::Parts(*s, rtf::Pieces(*s, s->out_frames)).count * (s->taps + 1) * s->channels;
}

const char* rtf_depthwise_grad_cuda_f32(const RtfDepthwise* s, const float* dy, const float* x, const float* w,
                                        float* dx, float* dw, float* dbias, float* scratch, void* stream) {
  if (s->channels == 0) return nullptr;
  const auto gpu = static_cast<cudaStream_t>(stream);
  const rtf::Pieces pieces(*s, s->out_frames);
  const rtf::Parts parts(*s, pieces);
  float* bias_parts = scratch + parts.count * s->taps * s->channels;
  cudaError_t error = rtf::launch_filter(*s, w, true, dy, s->out_frames, (s->taps - 1) * s->dilation - s->left, nullptr,
                                         dx, s->frames, gpu);
  if (error == cudaSuccess && parts.count > 0)
    error = rtf::launch(rtf::filter_grad, static_cast<unsigned>(parts.groups * parts.chunks * parts.count),
                        rtf::kThreads, (rtf::kStrip + rtf::kPiece) * rtf::kWarp * sizeof(float), gpu, *s, pieces, parts,
                        dy, x, scratch, bias_parts);
  if (error == cudaSuccess)
    error = rtf::launch_add_parts(parts.count, s->taps * s->channels, scratch, dw, nullptr, gpu);
  if (error == cudaSuccess) error = rtf::launch_add_parts(parts.count, s->channels, bias_parts, dbias, nullptr, gpu);
  return rtf::text_of(error);
}
}
