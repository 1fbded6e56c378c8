// The LSTM kernels for CPU. A frame is one product with the packed recurrent weights for all sequences of a thread that still
// run (common/packed_gemm.h), then one pass over the gates of each sequence (common/vector.h).
#include "lstm.h"

#include <vector>

#include "../common/packed_gemm.h"
#include "../common/ragged.h"

namespace rtf {
namespace {

Ragged ragged_of(const RtfLstmShape& shape) {
  return Ragged{shape.frames, shape.batch, shape.lengths, shape.reverse != 0};
}

// With so few rows in all, as in a decoder that calls the op for each frame, reading the weights once as they are is faster.
constexpr int64_t kRowsWithoutPacking = 4;

struct Forward {
  Ragged ragged;
  int64_t units;
  const float *z, *c0, *h0;
  Matrix weights;
  float *h, *c, *gates, *c_last, *h_last;

  const float* before(const float* initial, const float* all, int32_t b, int64_t step) const {
    return step == 0 ? initial + b * units : all + ragged.at(b, step - 1) * units;
  }

  // What the next step of sequence b reads from memory is asked for now: the arrays are larger than a cache.
  void prefetch(int32_t b, int64_t step, int64_t u) const {
    if (step + 1 >= ragged.length(b)) return;
    const float* next = z + ragged.at(b, step + 1) * 4 * units + 4 * u;
    for (int part = 0; part < 4; ++part) __builtin_prefetch(next + part * kLanes, 1);
  }

  void cell(int32_t b, int64_t step) const {
    const int64_t H = units, at = ragged.at(b, step);
    const float* c_before = before(c0, c, b, step);
    float *gate = gates + at * 4 * H, *c_now = c + at * H, *h_now = h + at * H;
    by_vectors(H, [&](int64_t u, auto whole, int n) __attribute__((always_inline)) {
      constexpr bool kWhole = decltype(whole)::value;
      prefetch(b, step, u);
      float* g = gate + u;
      const Vec j = tanh(load_n<kWhole>(g, n)), i = sigmoid(load_n<kWhole>(g + H, n));
      const Vec f = sigmoid(load_n<kWhole>(g + 2 * H, n)), o = sigmoid(load_n<kWhole>(g + 3 * H, n));
      const Vec state = f * load_n<kWhole>(c_before + u, n) + i * j;
      store_n<kWhole>(g, j, n);
      store_n<kWhole>(g + H, i, n);
      store_n<kWhole>(g + 2 * H, f, n);
      store_n<kWhole>(g + 3 * H, o, n);
      store_n<kWhole>(c_now + u, state, n);
      store_n<kWhole>(h_now + u, o * tanh(state), n);
    });
  }

  void run(const std::vector<int32_t>& rows) const {
    const int64_t H = units;
    std::vector<const float*> inputs(rows.size());
    std::vector<float*> outputs(rows.size());
    size_t active = rows.size();
    for (int64_t step = 0; step < ragged.frames; ++step) {
      while (active > 0 && ragged.length(rows[active - 1]) <= step) --active;
      if (active == 0) break;
      for (size_t row = 0; row < active; ++row) {
        const int64_t at = ragged.at(rows[row], step) * 4 * H;
        inputs[row] = before(h0, h, rows[row], step);
        outputs[row] = gates + at;
        if (gates != z) std::copy(z + at, z + at + 4 * H, gates + at);
      }
      multiply_add(inputs.data(), active, weights, outputs.data());
      for (size_t row = 0; row < active; ++row) cell(rows[row], step);
    }
    for (int32_t b : rows) finish(b);
  }

  void finish(int32_t b) const {
    const float *c_end = before(c0, c, b, ragged.length(b)), *h_end = before(h0, h, b, ragged.length(b));
    std::copy(c_end, c_end + units, c_last + b * units);
    std::copy(h_end, h_end + units, h_last + b * units);
    zero_padding(ragged, b, units, h);
    zero_padding(ragged, b, units, c);
    zero_padding(ragged, b, 4 * units, gates);
  }
};

struct Backward {
  Ragged ragged;
  int64_t units;
  const float *c0, *c, *gates, *dh, *dc_last, *dh_last, *packed;
  float *dz, *dc0, *dh0;

  void prefetch(int32_t b, int64_t step, int64_t u) const {
    if (step == 0) return;
    const int64_t at = ragged.at(b, step - 1);
    for (int part = 0; part < 4; ++part) __builtin_prefetch(gates + at * 4 * units + 4 * u + part * kLanes, 1);
    __builtin_prefetch(dh + at * units + u);
    if (step > 1) __builtin_prefetch(c + ragged.at(b, step - 2) * units + u);
  }

  // From the gradient of the state after a step to that of the gates' inputs. dh0 and dc0 [B, H] hold the gradient of the state
  // of the sequence meanwhile; dh0 is left as 0, for the product of the next frame to be added to.
  void cell(int32_t b, int64_t step) const {
    const int64_t H = units, at = ragged.at(b, step);
    const float *gate = gates + at * 4 * H, *c_now = c + at * H, *dh_now = dh + at * H;
    const float* c_before = step == 0 ? c0 + b * H : c + ragged.at(b, step - 1) * H;
    float *d_gate = dz + at * 4 * H, *dc_state = dc0 + b * H, *dh_state = dh0 + b * H;
    const Vec one = splat(1.0f);
    by_vectors(H, [&](int64_t u, auto whole, int n) __attribute__((always_inline)) {
      constexpr bool kWhole = decltype(whole)::value;
      prefetch(b, step, u);
      const float* g = gate + u;
      const Vec j = load_n<kWhole>(g, n), i = load_n<kWhole>(g + H, n), f = load_n<kWhole>(g + 2 * H, n);
      const Vec o = load_n<kWhole>(g + 3 * H, n), tanh_c = tanh(load_n<kWhole>(c_now + u, n));
      const Vec dh_total = load_n<kWhole>(dh_state + u, n) + load_n<kWhole>(dh_now + u, n);
      const Vec dc = load_n<kWhole>(dc_state + u, n) + dh_total * o * (one - tanh_c * tanh_c);
      float* d = d_gate + u;
      store_n<kWhole>(d, dc * i * (one - j * j), n);
      store_n<kWhole>(d + H, dc * j * i * (one - i), n);
      store_n<kWhole>(d + 2 * H, dc * load_n<kWhole>(c_before + u, n) * f * (one - f), n);
      store_n<kWhole>(d + 3 * H, dh_total * tanh_c * o * (one - o), n);
      store_n<kWhole>(dc_state + u, dc * f, n);
      store_n<kWhole>(dh_state + u, Vec{}, n);
    });
  }

  void run(const std::vector<int32_t>& rows) const {
    const int64_t H = units;
    for (int32_t b : rows) {
      std::copy(dc_last + b * H, dc_last + (b + 1) * H, dc0 + b * H);
      std::copy(dh_last + b * H, dh_last + (b + 1) * H, dh0 + b * H);
      zero_padding(ragged, b, 4 * H, dz);
    }
    std::vector<const float*> inputs(rows.size());
    std::vector<float*> outputs(rows.size());
    size_t active = 0;
    for (int64_t step = ragged.frames - 1; step >= 0; --step) {
      while (active < rows.size() && ragged.length(rows[active]) > step) ++active;
      for (size_t row = 0; row < active; ++row) {
        cell(rows[row], step);
        inputs[row] = dz + ragged.at(rows[row], step) * 4 * H;
        outputs[row] = dh0 + rows[row] * H;
      }
      multiply_add(inputs.data(), active, 4 * H, packed, H, outputs.data());
    }
  }
};

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_lstm_scratch_size(int64_t units) {
  return std::max(rtf::packed_size(units, 4 * units), rtf::packed_size(4 * units, units)) + rtf::kLanes;
}

void rtf_lstm_forward_f32(const RtfLstmShape* shape, const float* z, const float* r, const float* c0, const float* h0,
                          float* h, float* c, float* gates, float* c_last, float* h_last, float* scratch,
                          const RtfThreads* threads) {
  using namespace rtf;
  const int64_t H = shape->units;
  Matrix weights = plain_matrix(r, H, 4 * H);
  if (shape->frames * shape->batch > kRowsWithoutPacking || !has_whole_panels(4 * H)) {
    float* packed = align_up(scratch);
    run_ranges(*threads, n_panels(4 * H), [&](int64_t first, int64_t last) { pack(r, H, 4 * H, first, last, packed); });
    weights = packed_matrix(packed, H, 4 * H);
  }
  const Forward pass{ragged_of(*shape), H, z, c0, h0, weights, h, c, gates, c_last, h_last};
  const Shares shares(pass.ragged, threads->n_threads);
  run_tasks(*threads, shares.count(), [&](int64_t index) { pass.run(shares.share(index)); });
}

void rtf_lstm_backward_f32(const RtfLstmShape* shape, const float* r, const float* c0, const float* c, const float* gates,
                           const float* dh, const float* dc_last, const float* dh_last, float* dz, float* dc0, float* dh0,
                           float* scratch, const RtfThreads* threads) {
  using namespace rtf;
  const int64_t H = shape->units;
  float* packed = align_up(scratch);
  run_ranges(*threads, n_panels(H), [&](int64_t first, int64_t last) { pack_transposed(r, 4 * H, H, first, last, packed); });
  const Backward pass{ragged_of(*shape), H, c0, c, gates, dh, dc_last, dh_last, packed, dz, dc0, dh0};
  const Shares shares(pass.ragged, threads->n_threads);
  run_tasks(*threads, shares.count(), [&](int64_t index) { pass.run(shares.share(index)); });
}
}
