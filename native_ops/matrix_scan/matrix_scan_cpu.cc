// Matrix-valued recurrences on the CPU. A task is a head of a sequence, whose state stays in its cache.
//
// The backward pass keeps no states. With R[t] the gradient for S[t], and for exclusive outputs without that of o[t]:
//
//   d_q[t] = S[t] d_o[t]        a pass forwards with the transposed state, [values, keys]
//   d_v[t] = R[t]^T k[t]        a pass backwards
//   d_k[t] = R[t] v[t]          a pass backwards with the transposed state
//   d_g[t] = d_g[t+1] + q[t] d_q[t] - k[t] d_k[t]      row by row
//
// The last line compares two forms of sum_j R[t] S[t]: by S[t] = decay S[t-1] + k v^T, and by
// R[t] = q[t] d_o[t]^T + decay[t+1] R[t+1]. After the last frame it is the sum of d_last and the last state.
#include "../common/heads.h"
#include "matrix_scan.h"
#include "passes.h"

namespace rtf {
namespace {

struct Pass {
  HeadArray<const float> x, z, y, g;
  HeadArray<float> out;
  bool transposed;  // the rows of the state are the values, not the keys
  bool backwards;   // from the last frame to the first one

  int64_t rows() const { return x.width; }
  int64_t columns() const { return y.width; }
};

// The state of a head in memory, [K, V], to or from that of a pass.
void load_state(const Pass& pass, const float* from, int64_t stride, float* state) {
  const int64_t down = pass.transposed ? 1 : pass.columns(), along = pass.transposed ? pass.rows() : 1;
  for (int64_t r = 0; r < pass.rows(); ++r)
    for (int64_t c = 0; c < pass.columns(); ++c) state[r * stride + c] = from[r * down + c * along];
}

// Runs all frames of a head from the state ``first``. Without ``last`` the last state is not wanted.
void run(const RtfMatrixScanShape& shape, const Head& head, const Pass& pass, const float* first, float* last) {
  const int64_t rows = pass.rows(), columns = pass.columns(), stride = whole_vectors(columns), n = head.length();
  const bool exclusive = shape.exclusive;
  const Decay decay = pass.g.width == 1 ? Decay::kOne : pass.transposed ? Decay::kColumns : Decay::kRows;
  // Backwards, the decay between two frames is that of the later one: the one before, in the order of the pass.
  const bool delayed = pass.backwards && !exclusive;
  const int64_t decays = decay == Decay::kColumns ? stride : pass.g.width;
  Floats memory(rows * stride + kChunk * (2 * stride + whole_vectors(decays)));
  float* state = memory.at(0);
  float* y = memory.at(rows * stride);
  float* out = y + kChunk * stride;
  float* factors = out + kChunk * stride;
  load_state(pass, first, stride, state);
  Frames frames;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int count = static_cast<int>(std::min<int64_t>(kChunk, n - begin));
    const auto frame = [&](int64_t at) { return pass.backwards ? n - 1 - at : at; };
    for (int f = 0; f < count; ++f) {
      const int64_t s = frame(begin + f);
      frames.x[f] = pass.x.of(head, s);
      frames.z[f] = pass.z.of(head, s);
      float* factor = factors + f * whole_vectors(decays);
      if (delayed && begin + f == 0)
        std::fill(factor, factor + pass.g.width, 1.0f);
      else
        exponentials(pass.g.of(head, frame(begin + f - delayed)), pass.g.width, factor);
      frames.decay[f] = factor;
      if (stride == columns) {
        frames.y[f] = pass.y.of(head, s);
        frames.out[f] = pass.out.of(head, s);
      } else {
        const float* from = pass.y.of(head, s);
        std::copy(from, from + columns, y + f * stride);
        frames.y[f] = y + f * stride;
        frames.out[f] = out + f * stride;
      }
    }
    run_frames(decay, exclusive ? Read::kBefore : Read::kAfter, frames, count, rows, stride, state);
    if (stride != columns)
      for (int f = 0; f < count; ++f)
        std::copy(frames.out[f], frames.out[f] + columns, pass.out.of(head, frame(begin + f)));
  }
  if (!last) return;
  for (int64_t r = 0; r < rows; ++r) std::copy(state + r * stride, state + r * stride + columns, last + r * columns);
  if (!delayed || n == 0) return;
  exponentials(pass.g.of(head, 0), pass.g.width, factors);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) last[r * columns + c] *= factors[decay == Decay::kOne ? 0 : r];
}

// d_g from what the other gradients are, see above.
void decay_gradient(const RtfMatrixScanShape& shape, const Head& head, const HeadArray<const float>& q,
                    const HeadArray<const float>& k, const HeadArray<const float>& d_q,
                    const HeadArray<const float>& d_k, const float* last, const float* d_last,
                    const HeadArray<float>& d_g) {
  const int64_t keys = q.width, values = shape.values;
  const bool one = d_g.width == 1, exclusive = shape.exclusive;
  std::vector<double> sum(d_g.width);
  for (int64_t r = 0; r < keys; ++r) {
    double products = 0;
    for (int64_t c = 0; c < values; ++c) products += double(last[r * values + c]) * d_last[r * values + c];
    sum[one ? 0 : r] += products;
  }
  for (int64_t s = head.length() - 1; s >= 0; --s) {
    const float *q_s = q.of(head, s), *k_s = k.of(head, s), *d_q_s = d_q.of(head, s), *d_k_s = d_k.of(head, s);
    float* result = d_g.of(head, s);
    if (one) {
      double read = 0, added = 0;
      for (int64_t r = 0; r < keys; ++r) {
        read += double(q_s[r]) * d_q_s[r];
        added += double(k_s[r]) * d_k_s[r];
      }
      result[0] = static_cast<float>(sum[0] - added + (exclusive ? 0 : read));
      sum[0] += read - added;
    } else {
      for (int64_t r = 0; r < keys; ++r) {
        const double read = double(q_s[r]) * d_q_s[r], before = sum[r] - double(k_s[r]) * d_k_s[r];
        sum[r] = before + read;
        result[r] = static_cast<float>(exclusive ? before : sum[r]);
      }
    }
  }
}

}  // namespace
}  // namespace rtf

using namespace rtf;

void rtf_matrix_scan_forward_f32(const RtfMatrixScanShape* shape, const float* q, const float* k, const float* v,
                                 const float* g, const float* first, float* o, float* last, const RtfThreads* threads) {
  const int64_t keys = shape->keys, values = shape->values;
  const Pass pass{{k, keys}, {q, keys}, {v, values}, {g, shape->decays}, {o, values}, false, false};
  for_heads(shape->sequences, *threads, [&](const Head& head) {
    const int64_t state = head.state_row() * keys * values;
    run(*shape, head, pass, first + state, last + state);
    clear_padding(head, pass.out);
  });
}

void rtf_matrix_scan_backward_f32(const RtfMatrixScanShape* shape, const float* q, const float* k, const float* v,
                                  const float* g, const float* first, const float* last, const float* d_o,
                                  const float* d_last, float* d_q, float* d_k, float* d_v, float* d_g, float* d_first,
                                  const RtfThreads* threads) {
  const int64_t keys = shape->keys, values = shape->values;
  const HeadArray<const float> of_q{q, keys}, of_k{k, keys}, of_v{v, values}, of_g{g, shape->decays}, of_o{d_o, values};
  const Pass for_q{of_v, of_o, of_k, of_g, {d_q, keys}, true, false};
  const Pass for_v{of_q, of_k, of_o, of_g, {d_v, values}, false, true};
  const Pass for_k{of_o, of_v, of_q, of_g, {d_k, keys}, true, true};
  const HeadArray<float> for_g{d_g, shape->decays};
  for_heads(shape->sequences, *threads, [&](const Head& head) {
    const int64_t state = head.state_row() * keys * values;
    run(*shape, head, for_q, first + state, nullptr);
    run(*shape, head, for_v, d_last + state, d_first + state);
    run(*shape, head, for_k, d_last + state, nullptr);
    decay_gradient(*shape, head, of_q, of_k, {d_q, keys}, {d_k, keys}, last + state, d_last + state, for_g);
    for (const HeadArray<float>& x : {for_q.out, for_v.out, for_k.out, for_g}) clear_padding(head, x);
  });
}
