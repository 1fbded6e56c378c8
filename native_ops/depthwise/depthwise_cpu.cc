// A task takes some channels of a sequence, and copies a piece of its frames to a strip that stays in the first cache.
// There the zeros around the sequence are numbers like others, and the frames of a filter are near to each other.
#include <algorithm>

#include "../common/arena.h"
#include "../common/rows.h"
#include "../common/vector.h"
#include "depthwise.h"

namespace rtf {
namespace {

constexpr int64_t kGroup = 32;  // channels of a strip: whole vectors on every CPU
constexpr int64_t kPiece = 64;  // frames that are filtered at a time
constexpr int kSums = 8;        // sums in registers: as many as additions are in flight

int64_t groups_of(const RtfDepthwise& s) { return (s.channels + kGroup - 1) / kGroup; }
int64_t reach_of(const RtfDepthwise& s) { return (s.taps - 1) * s.dilation; }

// Sequences with a sum of their own in the gradient of the filter.
int64_t blocks_of(const RtfDepthwise& s) { return std::max<int64_t>(1, std::min<int64_t>(s.batch, 8)); }

// The channels of a group: where they begin, and how many there are.
struct Channels {
  int64_t first, count;
};

Channels channels_of(const RtfDepthwise& s, int64_t group) {
  return {group * kGroup, std::min(kGroup, s.channels - group * kGroup)};
}

// What a thread needs.
struct Strips {
  Strips(Arena& arena, const RtfDepthwise& s)
      : weights(arena.take(s.taps * kGroup)),
        sums(arena.take((s.taps + 1) * kGroup)),
        x(arena.take((kPiece + reach_of(s)) * kGroup)),
        dy(arena.take(kPiece * kGroup)) {}

  float *weights, *sums;  // [taps, kGroup]; sums: one more row for the bias
  float *x, *dy;          // [frames, kGroup]
};

// Copies frames first .. first + count - 1 of some channels to a strip; what is not there is 0.
void read(const float* from, int64_t n_frames, int64_t width, Channels channels, int64_t first, int64_t count,
          float* strip) {
  for (int64_t j = 0; j < count; ++j, strip += kGroup) {
    const int64_t t = first + j, n = t >= 0 && t < n_frames ? channels.count : 0;
    if (n) std::copy_n(from + t * width + channels.first, n, strip);
    std::fill(strip + n, strip + kGroup, 0.0f);
  }
}

// Filters a sequence: to[t] = bias + sum over k of weights[k] * from[t + k * dilation - left].
void filter(const RtfDepthwise& s, Channels channels, const float* weights, const float* from, int64_t n_from,
            int64_t left, const float* bias, float* to, int64_t n_to, float* strip) {
  for (int64_t begin = 0; begin < n_to; begin += kPiece) {
    const int64_t count = std::min(kPiece, n_to - begin);
    read(from, n_from, s.channels, channels, begin - left, round_up(count, kSums) + reach_of(s), strip);
    by_vectors(channels.count, [&](int64_t c, auto whole, int lanes) {
      constexpr bool kWhole = decltype(whole)::value;
      const Vec start = bias ? load_n<kWhole>(bias + channels.first + c, lanes) : Vec{};
      for (int64_t t = 0; t < count; t += kSums) {
        Vec sums[kSums];
        for (Vec& sum : sums) sum = start;
        const float *at = strip + t * kGroup + c, *weight = weights + c;
        for (int64_t k = 0; k < s.taps; ++k, at += s.dilation * kGroup, weight += kGroup) {
          const Vec w = load(weight);
          for (int i = 0; i < kSums; ++i) sums[i] += w * load(at + i * kGroup);
        }
        float* out = to + (begin + t) * s.channels + channels.first + c;
        for (int i = 0; i < std::min<int64_t>(kSums, count - t); ++i)
          store_n<kWhole>(out + i * s.channels, sums[i], lanes);
      }
    });
  }
}

// Adds to the sums of some taps, from k on: the products of dy and x that they multiply.
template <int kTaps>
int64_t add_taps(const RtfDepthwise& s, int64_t k, int64_t count, const float* x, const float* dy, float* sums) {
  for (; k + kTaps <= s.taps; k += kTaps) {
    Vec parts[kTaps] = {};
    for (int64_t t = 0; t < count; ++t) {
      const Vec d = load(dy + t * kGroup);
      for (int i = 0; i < kTaps; ++i) parts[i] += d * load(x + (t + (k + i) * s.dilation) * kGroup);
    }
    for (int i = 0; i < kTaps; ++i) store(sums + (k + i) * kGroup, load(sums + (k + i) * kGroup) + parts[i]);
  }
  return k;
}

// Adds the gradients of filter and bias by a sequence to the sums.
void add_sequence(const RtfDepthwise& s, Channels channels, const float* dy, const float* x, const Strips& strips) {
  for (int64_t begin = 0; begin < s.out_frames; begin += kPiece) {
    const int64_t count = std::min(kPiece, s.out_frames - begin);
    read(x, s.frames, s.channels, channels, begin - s.left, count + reach_of(s), strips.x);
    read(dy, s.out_frames, s.channels, channels, begin, count, strips.dy);
    for (int64_t c = 0; c < channels.count; c += kLanes) {
      const float *xs = strips.x + c, *dys = strips.dy + c;
      float* sums = strips.sums + c;
      int64_t k = add_taps<kSums>(s, 0, count, xs, dys, sums);
      k = add_taps<4>(s, k, count, xs, dys, sums);
      add_taps<1>(s, k, count, xs, dys, sums);
      Vec sum{};
      for (int64_t t = 0; t < count; ++t) sum += load(dys + t * kGroup);
      store(sums + s.taps * kGroup, load(sums + s.taps * kGroup) + sum);
    }
  }
}

// How many threads are worth waking for n groups of channels of a sequence.
int64_t parts_of(const RtfDepthwise& s, int64_t n, int n_threads) {
  const int64_t useful = s.batch * s.out_frames * s.channels / kNumbersPerThread;
  return std::max<int64_t>(1, std::min({static_cast<int64_t>(n_threads), n, useful}));
}

// Calls function(task, strips) for 0 .. n - 1; a thread keeps its strips.
template <typename Function>
void run_strips(const RtfDepthwise& s, int64_t n, float* scratch, const RtfThreads& threads, const Function& function) {
  const int64_t parts = parts_of(s, n, threads.n_threads), size = size_of<Strips>(s);
  run_tasks(threads, parts, [&](int64_t part) {
    Arena arena(scratch, part, size);
    const Strips strips(arena, s);
    for (int64_t task = part * n / parts; task < (part + 1) * n / parts; ++task) function(task, strips);
  });
}

// Filters all sequences, by the filters as they are or from the last tap to the first one.
void filter_all(const RtfDepthwise& s, const float* w, bool reversed, const float* from, int64_t n_from, int64_t left,
                const float* bias, float* to, int64_t n_to, float* scratch, const RtfThreads& threads) {
  const int64_t groups = groups_of(s);
  run_strips(s, s.batch * groups, scratch, threads, [&](int64_t task, const Strips& strips) {
    const int64_t n = task % s.batch;
    const Channels channels = channels_of(s, task / s.batch);
    for (int64_t k = 0; k < s.taps; ++k)
      read(w, s.taps, s.channels, channels, reversed ? s.taps - 1 - k : k, 1, strips.weights + k * kGroup);
    filter(s, channels, strips.weights, from + n * n_from * s.channels, n_from, left, bias, to + n * n_to * s.channels,
           n_to, strips.x);
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_depthwise_scratch_size(const RtfDepthwise* s, int n_threads) {
  return rtf::scratch_of(rtf::size_of<rtf::Strips>(*s), std::max(1, n_threads));
}

int64_t rtf_depthwise_sums_size(const RtfDepthwise* s) { return rtf::blocks_of(*s) * (s->taps + 1) * s->channels; }

void rtf_depthwise_f32(const RtfDepthwise* s, const float* x, const float* w, const float* bias, float* y,
                       float* scratch, const RtfThreads* threads) {
  rtf::filter_all(*s, w, false, x, s->frames, s->left, bias, y, s->out_frames, scratch, *threads);
}

void rtf_depthwise_grad_f32(const RtfDepthwise* s, const float* dy, const float* x, const float* w, float* dx,
                            float* dw, float* dbias, float* sums, float* scratch, const RtfThreads* threads) {
  rtf::filter_all(*s, w, true, dy, s->out_frames, rtf::reach_of(*s) - s->left, nullptr, dx, s->frames, scratch,
                  *threads);
  const int64_t blocks = rtf::blocks_of(*s), width = s->taps * s->channels;
  float* bias_sums = sums + blocks * width;
  rtf::run_strips(*s, blocks * rtf::groups_of(*s), scratch, *threads, [&](int64_t task, const rtf::Strips& strips) {
    const int64_t block = task % blocks;
    const rtf::Channels channels = rtf::channels_of(*s, task / blocks);
    std::fill_n(strips.sums, (s->taps + 1) * rtf::kGroup, 0.0f);
    for (int64_t n = block * s->batch / blocks; n < (block + 1) * s->batch / blocks; ++n)
      rtf::add_sequence(*s, channels, dy + n * s->out_frames * s->channels, x + n * s->frames * s->channels, strips);
    for (int64_t k = 0; k <= s->taps; ++k)
      std::copy_n(
          strips.sums + k * rtf::kGroup, channels.count,
          (k < s->taps ? sums + block * width + k * s->channels : bias_sums + block * s->channels) + channels.first);
  });
  rtf::add_blocks(blocks, width, sums, dw);
  rtf::add_blocks(blocks, s->channels, bias_sums, dbias);
}
}
