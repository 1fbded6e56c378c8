// The delta rule on the CPU. A task is a head of a sequence, whose state stays in its cache.
//
// The backward pass keeps no states. With R[t] the gradient for S[t] and w[t] = R[t]^T b[t]:
//
//   R[t] = diag(exp(g[t+1])) R[t+1] + a[t+1] w[t+1]^T + q[t] d_o[t]^T
//   d_v[t] = R[t]^T k[t]                                  with w in a pass backwards
//   d_q[t] = S[t] d_o[t],  d_a[t] = S[t-1] w[t]           in a pass forwards with the transposed state
//   d_k[t] = R[t] v[t],    d_b[t] = R[t] u[t]             in a pass backwards with the transposed state
//   d_g[t] = d_g[t+1] + a[t+1] d_a[t+1] + q[t] d_q[t] - b[t] d_b[t] - k[t] d_k[t]      row by row
//
// The last line compares two forms of sum_j R[t] S[t], by what S[t] and what R[t] is. After the last frame it is the
// sum of d_last and the last state.
#include "delta_passes.h"
#include "delta_scan.h"

namespace rtf {
namespace {

constexpr int kChunk = 32;  // frames

using In = HeadArray<const float>;
using Out = HeadArray<float>;

struct Inputs {
  In q, k, v, a, b, g;
};

Inputs arrays(const RtfDeltaScanShape& shape, const RtfDeltaScanInputs& x) {
  const int64_t keys = shape.keys;
  return {{x.q, keys}, {x.k, keys}, {x.v, shape.values}, {x.a, keys}, {x.b, keys}, {x.g, shape.decays}};
}

// The factors of a frame for each key.
void decays_of(const In& g, const Head& head, int64_t s, int64_t keys, float* factors) {
  exponentials(g.of(head, s), g.width, factors);
  if (g.width == 1) std::fill(factors, factors + keys, factors[0]);
}

// Memory for some arrays [kChunk, width], padded to vectors.
class Rows {
 public:
  explicit Rows(int64_t width) : width_(width), stride_(whole_vectors(width)), memory_(kChunk * stride_) {}

  float* at(int64_t f) { return memory_.at(f * stride_); }

  const float* copy(int64_t f, const float* from) {
    std::copy(from, from + width_, at(f));
    return at(f);
  }

  void copy_to(int64_t f, float* to) { std::copy(at(f), at(f) + width_, to); }

 private:
  int64_t width_, stride_;
  Floats memory_;
};

// o, u and the last state of a head.
void forward(const RtfDeltaScanShape& shape, const Head& head, const Inputs& x, const float* first, const Out& o,
             const Out& u, float* last) {
  const int64_t keys = shape.keys, values = shape.values, stride = whole_vectors(values), n = head.length();
  Floats state(keys * stride), read(stride);
  const std::vector<float> zeros(keys);
  for (int64_t r = 0; r < keys; ++r) std::copy(first + r * values, first + (r + 1) * values, state.at(r * stride));
  if (n > 0) {
    const float* a = x.a.of(head, 0);
    for (int64_t r = 0; r < keys; ++r)
      for (int64_t c = 0; c < values; ++c) read.at(0)[c] += a[r] * first[r * values + c];
    std::copy(read.at(0), read.at(values), u.of(head, 0));
  }
  Rows decays(keys), y(values), outs(values), next(values);
  ReadingFrame frames[kChunk];
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t count = std::min<int64_t>(kChunk, n - begin);
    for (int64_t f = 0; f < count; ++f) {
      const int64_t s = begin + f;
      decays_of(x.g, head, s, keys, decays.at(f));
      frames[f] = {decays.at(f),
                   x.b.of(head, s),
                   x.k.of(head, s),
                   x.q.of(head, s),
                   s + 1 < n ? x.a.of(head, s + 1) : zeros.data(),
                   y.copy(f, x.v.of(head, s)),
                   outs.at(f),
                   next.at(f)};
    }
    run_reading(frames, count, keys, stride, state.at(0), read.at(0));
    for (int64_t f = 0; f < count; ++f) {
      outs.copy_to(f, o.of(head, begin + f));
      if (begin + f + 1 < n) next.copy_to(f, u.of(head, begin + f + 1));
    }
  }
  for (int64_t r = 0; r < keys; ++r) std::copy(state.at(r * stride), state.at(r * stride) + values, last + r * values);
}

// d_v, the gradient of the first state, and w [n, values], in the order in which the frames run.
void backward_values(const RtfDeltaScanShape& shape, const Head& head, const Inputs& x, const In& d_o,
                     const float* d_last, const Out& d_v, float* w, float* d_first) {
  const int64_t keys = shape.keys, values = shape.values, stride = whole_vectors(values), n = head.length();
  Floats state(keys * stride), read(stride);
  const std::vector<float> zeros(keys);
  for (int64_t r = 0; r < keys; ++r) std::copy(d_last + r * values, d_last + (r + 1) * values, state.at(r * stride));
  Rows decays(keys), y(values), outs(values), next(values);
  ReadingFrame frames[kChunk];
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t count = std::min<int64_t>(kChunk, n - begin);
    for (int64_t f = 0; f < count; ++f) {
      const int64_t s = n - 1 - begin - f;
      const bool is_last = s == n - 1;
      if (is_last)
        std::fill(decays.at(f), decays.at(f) + keys, 1.0f);
      else
        decays_of(x.g, head, s + 1, keys, decays.at(f));
      frames[f] = {decays.at(f),    is_last ? zeros.data() : x.a.of(head, s + 1),
                   x.q.of(head, s), x.k.of(head, s),
                   x.b.of(head, s), y.copy(f, d_o.of(head, s)),
                   outs.at(f),      next.at(f)};
    }
    run_reading(frames, count, keys, stride, state.at(0), read.at(0));
    for (int64_t f = 0; f < count; ++f) {
      const int64_t s = n - 1 - begin - f;
      outs.copy_to(f, d_v.of(head, s));
      next.copy_to(f, w + s * values);
    }
  }
  if (n == 0) {
    std::copy(d_last, d_last + keys * values, d_first);
    return;
  }
  decays_of(x.g, head, 0, keys, decays.at(0));
  const float* a = x.a.of(head, 0);
  for (int64_t r = 0; r < keys; ++r)
    for (int64_t c = 0; c < values; ++c)
      d_first[r * values + c] = decays.at(0)[r] * state.at(r * stride)[c] + a[r] * w[c];
}

// The passes with transposed states: forwards for d_q and d_a, backwards for d_k and d_b.
void backward_keys(const RtfDeltaScanShape& shape, const Head& head, const Inputs& x, const In& u, const In& d_o,
                   const float* w, const float* first, bool backwards, const Out& out, const Out& out_2) {
  const int64_t keys = shape.keys, values = shape.values, stride = whole_vectors(keys), n = head.length();
  Floats state(values * stride);
  const std::vector<float> zeros(std::max(keys, values));
  for (int64_t r = 0; r < keys; ++r)
    for (int64_t c = 0; c < values; ++c) state.at(c * stride)[r] = first[r * values + c];
  Rows decays(keys), b(keys), y(keys), outs(keys), outs_2(keys);
  KnownFrame frames[kChunk];
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t count = std::min<int64_t>(kChunk, n - begin);
    for (int64_t f = 0; f < count; ++f) {
      const int64_t s = backwards ? n - 1 - begin - f : begin + f;
      if (!backwards) {
        decays_of(x.g, head, s, keys, decays.at(f));
        frames[f] = {decays.at(f),
                     b.copy(f, x.b.of(head, s)),
                     y.copy(f, x.k.of(head, s)),
                     u.of(head, s),
                     x.v.of(head, s),
                     d_o.of(head, s),
                     w + s * values,
                     outs.at(f),
                     outs_2.at(f)};
        continue;
      }
      const bool is_last = s == n - 1;
      if (is_last)
        std::fill(decays.at(f), decays.at(f) + keys, 1.0f);
      else
        decays_of(x.g, head, s + 1, keys, decays.at(f));
      frames[f] = {decays.at(f),
                   b.copy(f, is_last ? zeros.data() : x.a.of(head, s + 1)),
                   y.copy(f, x.q.of(head, s)),
                   is_last ? zeros.data() : w + (s + 1) * values,
                   d_o.of(head, s),
                   x.v.of(head, s),
                   u.of(head, s),
                   outs.at(f),
                   outs_2.at(f)};
    }
    if (backwards)
      run_known<false>(frames, count, values, stride, state.at(0));
    else
      run_known<true>(frames, count, values, stride, state.at(0));
    for (int64_t f = 0; f < count; ++f) {
      const int64_t s = backwards ? n - 1 - begin - f : begin + f;
      outs.copy_to(f, out.of(head, s));
      outs_2.copy_to(f, out_2.of(head, s));
    }
  }
}

// d_g from what the other gradients are, see above.
void decay_gradient(const RtfDeltaScanShape& shape, const Head& head, const Inputs& x, const Out& d_q, const Out& d_k,
                    const Out& d_a, const Out& d_b, const float* last, const float* d_last, const Out& d_g) {
  const int64_t keys = shape.keys, values = shape.values;
  std::vector<double> sum(keys);
  for (int64_t r = 0; r < keys; ++r)
    for (int64_t c = 0; c < values; ++c) sum[r] += double(last[r * values + c]) * d_last[r * values + c];
  for (int64_t s = head.length() - 1; s >= 0; --s) {
    const float *q = x.q.of(head, s), *k = x.k.of(head, s), *a = x.a.of(head, s), *b = x.b.of(head, s);
    const float *q_grad = d_q.of(head, s), *k_grad = d_k.of(head, s), *a_grad = d_a.of(head, s),
                *b_grad = d_b.of(head, s);
    float* result = d_g.of(head, s);
    double total = 0;
    for (int64_t r = 0; r < keys; ++r) {
      const double here = sum[r] + double(q[r]) * q_grad[r] - double(b[r]) * b_grad[r] - double(k[r]) * k_grad[r];
      sum[r] = here + double(a[r]) * a_grad[r];
      total += here;
      if (d_g.width != 1) result[r] = static_cast<float>(here);
    }
    if (d_g.width == 1) result[0] = static_cast<float>(total);
  }
}

}  // namespace
}  // namespace rtf

using namespace rtf;

void rtf_delta_scan_forward_f32(const RtfDeltaScanShape* shape, const RtfDeltaScanInputs* inputs, float* o, float* u,
                                float* last, const RtfThreads* threads) {
  const Inputs x = arrays(*shape, *inputs);
  const Out of_o{o, shape->values}, of_u{u, shape->values};
  for_heads(shape->sequences, *threads, [&](const Head& head) {
    const int64_t state = head.state_row() * shape->keys * shape->values;
    forward(*shape, head, x, inputs->first + state, of_o, of_u, last + state);
    clear_padding(head, of_o);
    clear_padding(head, of_u);
  });
}

void rtf_delta_scan_backward_f32(const RtfDeltaScanShape* shape, const RtfDeltaScanInputs* inputs, const float* u,
                                 const float* last, const float* d_o, const float* d_last,
                                 const RtfDeltaScanGradients* gradients, const RtfThreads* threads) {
  const int64_t keys = shape->keys, values = shape->values;
  const Inputs x = arrays(*shape, *inputs);
  const In of_u{u, values}, of_o{d_o, values};
  const Out q{gradients->q, keys}, k{gradients->k, keys}, v{gradients->v, values}, a{gradients->a, keys};
  const Out b{gradients->b, keys}, g{gradients->g, shape->decays};
  for_heads(shape->sequences, *threads, [&](const Head& head) {
    const int64_t state = head.state_row() * keys * values;
    Floats w(head.length() * values);
    backward_values(*shape, head, x, of_o, d_last + state, v, w.at(0), gradients->first + state);
    backward_keys(*shape, head, x, of_u, of_o, w.at(0), inputs->first + state, false, q, a);
    backward_keys(*shape, head, x, of_u, of_o, w.at(0), d_last + state, true, k, b);
    decay_gradient(*shape, head, x, q, k, a, b, last + state, d_last + state, g);
    for (const Out& gradient : {q, k, v, a, b, g}) clear_padding(head, gradient);
  });
}
