// Selective state spaces on the CPU. The exponential of each state and frame decides: a vector has one state of as many
// channels as it has lanes, so that sums over the states need no shuffles. A task has a range of the channels of one
// sequence and goes through time in chunks. The backward pass computes the states of a chunk again from the one that
// the forward pass kept before it.
#include <algorithm>
#include <vector>

#include "../common/ragged.h"
#include "../common/vector.h"
#include "selective_scan.h"

namespace rtf {
namespace {

constexpr int64_t kChunk = RTF_SELECTIVE_CHUNK;  // steps
constexpr int64_t kTasks = 32;  // at least, where there are channels enough: results do not depend on the threads
constexpr int64_t kLeast = 64;  // channels of a task, at least

// As in std::vector<Vec>, of which compilers warn that it forgets attributes of the type.
struct Lanes {
  Vec value;
};
using Buffer = std::vector<Lanes>;

inline Vec exponential(Vec x) {
  Vec scale, rest;
  exp_parts(x, &scale, &rest);
  return scale + scale * rest;
}

inline float sum_of(Vec x) {
  float lanes[kLanes], sum = 0.0f;
  store(lanes, x);
  for (float lane : lanes) sum += lane;
  return sum;
}

int64_t splits_of(const RtfSelectiveShape& shape) {
  const RtfSequences& s = shape.sequences;
  const int64_t wanted = (kTasks + s.batch - 1) / std::max<int64_t>(1, s.batch);
  return std::max<int64_t>(1, std::min(wanted, s.units / kLeast));
}

// Numbers in the gradient of b or of c by one split of the channels.
int64_t size_of_gradient(const RtfSelectiveShape& shape) {
  return shape.sequences.frames * shape.sequences.batch * shape.states;
}

Ragged ragged_of(const RtfSequences& s) { return {s.frames, s.batch, s.lengths, s.reverse != 0}; }

// function(sequence, split, first channel, end) on the threads.
template <typename Function>
void share_channels(const RtfSelectiveShape& shape, const RtfThreads& threads, const Function& function) {
  const RtfSequences& s = shape.sequences;
  const int64_t splits = splits_of(shape), vectors = (s.units + kLanes - 1) / kLanes;
  if (s.batch == 0) return;
  run_tasks(threads, s.batch * splits, [&](int64_t task) {
    const int64_t split = task % splits;
    function(static_cast<int32_t>(task / splits), split, split * vectors / splits * kLanes,
             std::min(s.units, (split + 1) * vectors / splits * kLanes));
  });
}

template <bool kWhole>
void load_states(const float* from, int64_t stride, int lanes, int64_t states, Lanes* to) {
  for (int64_t n = 0; n < states; ++n) to[n].value = load_n<kWhole>(from + n * stride, lanes);
}

template <bool kWhole>
void store_states(const Lanes* from, int64_t stride, int lanes, int64_t states, float* to) {
  for (int64_t n = 0; n < states; ++n) store_n<kWhole>(to + n * stride, from[n].value, lanes);
}

// Zeroes columns first .. end - 1 of the frames after the end of a sequence.
void zero_columns(const Ragged& ragged, int32_t row, int64_t width, int64_t first, int64_t end, float* x) {
  for (int64_t t = ragged.length(row); t < ragged.frames; ++t)
    std::fill(x + (t * ragged.batch + row) * width + first, x + (t * ragged.batch + row) * width + end, 0.0f);
}

void forward(const RtfSelectiveShape& shape, const RtfSelectiveInputs& in, float* y, float* h_last, float* checkpoints,
             const RtfThreads& threads) {
  const RtfSequences& s = shape.sequences;
  const Ragged ragged = ragged_of(s);
  const int64_t width = s.units, states = shape.states;
  share_channels(shape, threads, [&](int32_t row, int64_t, int64_t first, int64_t end) {
    Buffer a(states), h(states);
    const int64_t length = ragged.length(row);
    float* state = h_last + row * states * width;
    for (int64_t n = 0; n < states; ++n)
      std::copy(in.h0 + (row * states + n) * width + first, in.h0 + (row * states + n) * width + end,
                state + n * width + first);
    for (int64_t begin = 0; begin < length; begin += kChunk) {
      float* kept = checkpoints + (begin / kChunk * s.batch + row) * states * width;
      by_vectors(end - first, [&](int64_t u, auto whole, int lanes) {
        constexpr bool kWhole = decltype(whole)::value;
        const int64_t d = first + u;
        load_states<kWhole>(in.a + d, width, lanes, states, a.data());
        load_states<kWhole>(state + d, width, lanes, states, h.data());
        store_states<kWhole>(h.data(), width, lanes, states, kept + d);
        const Vec skip = load_n<kWhole>(in.d + d, lanes);
        for (int64_t step = begin; step < std::min(length, begin + kChunk); ++step) {
          const int64_t frame = ragged.at(row, step), at = frame * width + d;
          const Vec x = load_n<kWhole>(in.x + at, lanes), delta = load_n<kWhole>(in.delta + at, lanes);
          const float *b = in.b + frame * states, *c = in.c + frame * states;
          const Vec input = delta * x;
          Vec sum = skip * x;
          for (int64_t n = 0; n < states; ++n) {
            h[n].value = exponential(delta * a[n].value) * h[n].value + input * splat(b[n]);
            sum += splat(c[n]) * h[n].value;
          }
          store_n<kWhole>(y + at, sum, lanes);
        }
        store_states<kWhole>(h.data(), width, lanes, states, state + d);
      });
    }
    zero_columns(ragged, row, width, first, end, y);
  });
}

// What the backward pass of one task needs besides arrays; all for kLanes channels, [steps, states].
struct Chunk {
  Buffer a, h, factors, g, da, db, dc;

  explicit Chunk(int64_t states)
      : a(states),
        h((kChunk + 1) * states),
        factors(kChunk * states),
        g(states),
        da(states),
        db(kChunk * states),
        dc(kChunk * states) {}
};

// The gradients of one chunk for the channels d ... of a sequence, given those of the states after it in out.h0, where
// it leaves those of the states before it.
template <bool kWhole>
void backward_of_chunk(const RtfSelectiveShape& shape, const RtfSelectiveInputs& in, const float* kept, const float* dy,
                       const RtfSelectiveGradients& out, int32_t row, int64_t begin, int64_t end, int64_t d, int lanes,
                       Chunk* chunk) {
  const RtfSequences& s = shape.sequences;
  const Ragged ragged = ragged_of(s);
  const int64_t width = s.units, states = shape.states, state = row * states * width + d;
  const Lanes* a = chunk->a.data();
  load_states<kWhole>(in.a + d, width, lanes, states, chunk->a.data());
  load_states<kWhole>(kept + d, width, lanes, states, chunk->h.data());
  for (int64_t step = begin; step < end; ++step) {
    const int64_t frame = ragged.at(row, step), at = frame * width + d, k = (step - begin) * states;
    const Vec delta = load_n<kWhole>(in.delta + at, lanes), input = delta * load_n<kWhole>(in.x + at, lanes);
    const float* b = in.b + frame * states;
    const Lanes* before = chunk->h.data() + k;
    Lanes *after = chunk->h.data() + k + states, *factors = chunk->factors.data() + k;
    for (int64_t n = 0; n < states; ++n) {
      factors[n].value = exponential(delta * a[n].value);
      after[n].value = factors[n].value * before[n].value + input * splat(b[n]);
    }
  }
  Lanes *g = chunk->g.data(), *da = chunk->da.data();
  load_states<kWhole>(out.h0 + state, width, lanes, states, g);
  load_states<kWhole>(out.a + state, width, lanes, states, da);
  const Vec skip = load_n<kWhole>(in.d + d, lanes);
  Vec d_skip = load_n<kWhole>(out.d + row * width + d, lanes);
  for (int64_t step = end - 1; step >= begin; --step) {
    const int64_t frame = ragged.at(row, step), at = frame * width + d, k = (step - begin) * states;
    const Vec x = load_n<kWhole>(in.x + at, lanes), delta = load_n<kWhole>(in.delta + at, lanes);
    const Vec gradient = load_n<kWhole>(dy + at, lanes), input = delta * x;
    const float *b = in.b + frame * states, *c = in.c + frame * states;
    const Lanes *before = chunk->h.data() + k, *after = before + states, *factors = chunk->factors.data() + k;
    Lanes *db = chunk->db.data() + k, *dc = chunk->dc.data() + k;
    Vec d_input{}, d_delta{};
    for (int64_t n = 0; n < states; ++n) {
      const Vec now = g[n].value + splat(c[n]) * gradient;
      dc[n].value += gradient * after[n].value;
      db[n].value += now * input;
      d_input += now * splat(b[n]);
      const Vec decayed = now * factors[n].value, d_exponent = decayed * before[n].value;
      d_delta += d_exponent * a[n].value;
      da[n].value += d_exponent * delta;
      g[n].value = decayed;
    }
    store_n<kWhole>(out.x + at, d_input * delta + gradient * skip, lanes);
    store_n<kWhole>(out.delta + at, d_input * x + d_delta, lanes);
    d_skip += gradient * x;
  }
  store_states<kWhole>(g, width, lanes, states, out.h0 + state);
  store_states<kWhole>(da, width, lanes, states, out.a + state);
  store_n<kWhole>(out.d + row * width + d, d_skip, lanes);
}

void backward(const RtfSelectiveShape& shape, const RtfSelectiveInputs& in, const float* checkpoints, const float* dy,
              const float* dh_last, const RtfSelectiveGradients& out, float* scratch, const RtfThreads& threads) {
  const RtfSequences& s = shape.sequences;
  const Ragged ragged = ragged_of(s);
  const int64_t width = s.units, states = shape.states, splits = splits_of(shape);
  const int64_t size = size_of_gradient(shape);
  share_channels(shape, threads, [&](int32_t row, int64_t split, int64_t first, int64_t end) {
    Chunk chunk(states);
    float *db = scratch + 2 * split * size, *dc = db + size;
    for (int64_t n = 0; n < states; ++n) {
      const int64_t at = (row * states + n) * width;
      std::copy(dh_last + at + first, dh_last + at + end, out.h0 + at + first);
      std::fill(out.a + at + first, out.a + at + end, 0.0f);
    }
    std::fill(out.d + row * width + first, out.d + row * width + end, 0.0f);
    const int64_t length = ragged.length(row);
    for (int64_t begin = (length + kChunk - 1) / kChunk * kChunk - kChunk; begin >= 0; begin -= kChunk) {
      const int64_t stop = std::min(length, begin + kChunk);
      const float* kept = checkpoints + (begin / kChunk * s.batch + row) * states * width;
      std::fill(chunk.db.begin(), chunk.db.end(), Lanes{});
      std::fill(chunk.dc.begin(), chunk.dc.end(), Lanes{});
      by_vectors(end - first, [&](int64_t u, auto whole, int lanes) {
        backward_of_chunk<decltype(whole)::value>(shape, in, kept, dy, out, row, begin, stop, first + u, lanes, &chunk);
      });
      for (int64_t step = begin; step < stop; ++step)
        for (int64_t n = 0; n < states; ++n) {
          const int64_t at = ragged.at(row, step) * states + n, from = (step - begin) * states + n;
          db[at] = sum_of(chunk.db[from].value);
          dc[at] = sum_of(chunk.dc[from].value);
        }
    }
    zero_columns(ragged, row, width, first, end, out.x);
    zero_columns(ragged, row, width, first, end, out.delta);
  });
  run_ranges(threads, s.frames * s.batch, [&](int64_t from, int64_t to) {
    for (int64_t i = from * states; i < to * states; ++i) {
      const int64_t row = i / states % s.batch, t = i / states / s.batch;
      float db = 0.0f, dc = 0.0f;
      for (int64_t split = 0; t < ragged.length(row) && split < splits; ++split) {
        db += scratch[2 * split * size + i];
        dc += scratch[(2 * split + 1) * size + i];
      }
      out.b[i] = db;
      out.c[i] = dc;
    }
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_selective_checkpoints(int64_t frames) { return (frames + rtf::kChunk - 1) / rtf::kChunk; }

int64_t rtf_selective_scratch_size(const RtfSelectiveShape* shape) {
  return 2 * rtf::splits_of(*shape) * rtf::size_of_gradient(*shape);
}

void rtf_selective_forward_f32(const RtfSelectiveShape* shape, const RtfSelectiveInputs* inputs, float* y,
                               float* h_last, float* checkpoints, const RtfThreads* threads) {
  rtf::forward(*shape, *inputs, y, h_last, checkpoints, *threads);
}

void rtf_selective_backward_f32(const RtfSelectiveShape* shape, const RtfSelectiveInputs* inputs,
                                const float* checkpoints, const float* dy, const float* dh_last,
                                const RtfSelectiveGradients* gradients, float* scratch, const RtfThreads* threads) {
  rtf::backward(*shape, *inputs, checkpoints, dy, dh_last, *gradients, scratch, *threads);
}
}
