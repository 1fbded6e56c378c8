// The LSTM kernels for CPU. A step of some units is one product with their packed recurrent weights (common/weights.h),
// followed by the cell (common/vector.h) while the sums are in registers or a near cache.
#include "../common/recurrence.h"
#include "lstm.h"

namespace rtf {
namespace {

constexpr int kGates = 4;

struct Forward {
  Ragged ragged;
  int64_t units;
  const float *z, *c0, *h0;
  Weights<kGates> weights;
  FactorRows tiles[2];  // h_{t-1} of even and of odd steps
  float *h, *c, *gates, *c_last, *h_last;

  const float* before(const float* initial, const float* all, int32_t b, int64_t step) const {
    return step == 0 ? initial + b * units : all + ragged.at(b, step - 1) * units;
  }

  // Prefetches what the next step of sequence b reads: the arrays do not fit into a cache.
  void prefetch(int32_t b, int64_t step, int64_t u) const {
    if (step + 1 >= ragged.length(b)) return;
    const int64_t next = ragged.at(b, step + 1) * units;
    for (int gate = 0; gate < kGates; ++gate) {
      if (z != gates) prefetch_to_read(z + (next * kGates + gate * units) + u);
      prefetch_to_write(gates + (next * kGates + gate * units) + u);
    }
    prefetch_to_write(h + next + u);
    prefetch_to_write(c + next + u);
  }

  template <bool kWhole>
  void cell(int32_t b, int64_t step, int64_t u, int n, const Vec* sums, int64_t row, const FactorRows& next) const {
    const int64_t H = units, at = ragged.at(b, step);
    const float *in = z + at * kGates * H + u, *c_before = before(c0, c, b, step) + u;
    float* g = gates + at * kGates * H + u;
    prefetch(b, step, u);
    const Vec j = tanh(load_n<kWhole>(in, n) + sums[0]), i = sigmoid(load_n<kWhole>(in + H, n) + sums[1]);
    const Vec f = sigmoid(load_n<kWhole>(in + 2 * H, n) + sums[2]),
              o = sigmoid(load_n<kWhole>(in + 3 * H, n) + sums[3]);
    const Vec state = f * load_n<kWhole>(c_before, n) + i * j, out = o * tanh(state);
    store_n<kWhole>(g, j, n);
    store_n<kWhole>(g + H, i, n);
    store_n<kWhole>(g + 2 * H, f, n);
    store_n<kWhole>(g + 3 * H, o, n);
    store_n<kWhole>(c + at * H + u, state, n);
    store_n<kWhole>(h + at * H + u, out, n);
    next.put<kWhole>(row, u, out, n);
  }

  void begin(const Rows& rows) const {
    const FactorRows first = rows.of(tiles[0]);
    for (int64_t row = 0; row < rows.active(-1); ++row) first.put_row(row, h0 + rows[row] * units, units);
  }

  int64_t n_steps(const Rows& rows) const { return rows.frames(); }
  int64_t n_panels(int64_t) const { return weights.panels(); }

  void run(const Rows& rows, int64_t step, int64_t first, int64_t last) const {
    const FactorRows now = rows.of(tiles[step % 2]), next = rows.of(tiles[(step + 1) % 2]);
    weights.multiply([&](int64_t row) { return before(h0, h, rows[row], step); }, now, rows.active(step), first, last,
                     step % 2,
                     [&](int64_t panel, auto, int64_t row, const Vec* sums) __attribute__((always_inline)) {
                       const int64_t u = panel * kLanes;
                       if (u + kLanes <= units)
                         cell<true>(rows[row], step, u, kLanes, sums, row, next);
                       else
                         cell<false>(rows[row], step, u, static_cast<int>(units - u), sums, row, next);
                     });
  }

  void end(const Rows& rows) const {
    for (int32_t b : rows.all()) {
      const float *c_end = before(c0, c, b, ragged.length(b)), *h_end = before(h0, h, b, ragged.length(b));
      std::copy(c_end, c_end + units, c_last + b * units);
      std::copy(h_end, h_end + units, h_last + b * units);
      zero_padding(ragged, b, units, h);
      zero_padding(ragged, b, units, c);
      zero_padding(ragged, b, kGates * units, gates);
    }
  }
};

struct Backward {
  Ragged ragged;
  int64_t units;
  const float *c0, *c, *gates, *dh, *dc_last, *dh_last;
  TransposedWeights weights;
  FactorRows tiles[2];  // dz of even and of odd steps
  float *dz, *dc0, *dh0;

  void prefetch(int32_t b, int64_t step, int64_t u) const {
    if (step == 0) return;
    const int64_t at = ragged.at(b, step - 1);
    for (int gate = 0; gate < kGates; ++gate) {
      if (gates != dz) prefetch_to_read(gates + (at * kGates + gate) * units + u);
      prefetch_to_write(dz + (at * kGates + gate) * units + u);
    }
    prefetch_to_read(dh + at * units + u);
    if (step > 1) prefetch_to_read(c + ragged.at(b, step - 2) * units + u);
  }

  // From the gradient of the output after a step, as far as it comes from the next step, to that of the gate inputs.
  // dc0 [B, H] holds the gradient of the cell state meanwhile.
  template <bool kWhole>
  void cell(int32_t b, int64_t step, int64_t u, int n, Vec dh_state, int64_t row, const FactorRows& to) const {
    const int64_t H = units, at = ragged.at(b, step);
    const float *g = gates + at * kGates * H + u, *c_before = step == 0 ? c0 + b * H : c + ragged.at(b, step - 1) * H;
    float *d = dz + at * kGates * H + u, *dc_state = dc0 + b * H + u;
    const Vec one = splat(1.0f);
    const int64_t padded = round_up(H, kLanes);
    prefetch(b, step, u);
    const Vec j = load_n<kWhole>(g, n), i = load_n<kWhole>(g + H, n), f = load_n<kWhole>(g + 2 * H, n);
    const Vec o = load_n<kWhole>(g + 3 * H, n), tanh_c = tanh(load_n<kWhole>(c + at * H + u, n));
    const Vec dh_total = dh_state + load_n<kWhole>(dh + at * H + u, n);
    const Vec dc = load_n<kWhole>(dc_state, n) + dh_total * o * (one - tanh_c * tanh_c);
    const Vec d_gates[kGates] = {dc * i * (one - j * j), dc * j * i * (one - i),
                                 dc * load_n<kWhole>(c_before + u, n) * f * (one - f),
                                 dh_total * tanh_c * o * (one - o)};
    for (int gate = 0; gate < kGates; ++gate) {
      store_n<kWhole>(d + gate * H, d_gates[gate], n);
      to.put<kWhole>(row, gate * padded + u, d_gates[gate], n);
    }
    store_n<kWhole>(dc_state, dc * f, n);
  }

  void begin(const Rows& rows) const {
    for (int32_t b : rows.all()) {
      std::copy(dc_last + b * units, dc_last + (b + 1) * units, dc0 + b * units);
      zero_padding(ragged, b, kGates * units, dz);
    }
  }

  // One per frame, plus one for the gradient of the initial state.
  int64_t n_steps(const Rows& rows) const { return rows.frames() + 1; }
  int64_t n_panels(int64_t) const { return weights.panels(); }

  void run(const Rows& rows, int64_t index, int64_t first, int64_t last) const {
    run_backward_step(*this, rows, index, first, last);
  }

  static constexpr int kDepth = kGates;
  const float* dh_end() const { return dh_last; }
  float* dh_begin() const { return dh0; }

  void end(const Rows&) const {}
};

}  // namespace
}  // namespace rtf

extern "C" {

int rtf_lstm_rounds(void) { return rtf::kRounds; }

int64_t rtf_lstm_scratch_size(const RtfLstmShape* shape, int rounded) {
  return rtf::scratch_of_passes<rtf::ForwardMemory<rtf::kGates>, rtf::BackwardMemory<rtf::kGates>>(
      rtf::Recurrence(*shape, rounded));
}

void rtf_lstm_forward_f32(const RtfLstmShape* shape, int rounded, const float* z, const float* r, const float* c0,
                          const float* h0, float* h, float* c, float* gates, float* c_last, float* h_last,
                          float* scratch, const RtfThreads* threads) {
  using namespace rtf;
  const Recurrence recurrence(*shape, rounded);
  const int64_t H = shape->units;
  Arena arena(scratch);
  const ForwardMemory<kGates> memory(arena, recurrence);
  const Weights<kGates> weights = Weights<kGates>::of(recurrence, r, H, kGates * H, memory.weights, *threads);
  const Forward pass{
      .ragged = ragged_of(recurrence),
      .units = H,
      .z = z,
      .c0 = c0,
      .h0 = h0,
      .weights = weights,
      .tiles = {memory.tiles[0], memory.tiles[1]},
      .h = h,
      .c = c,
      .gates = gates,
      .c_last = c_last,
      .h_last = h_last,
  };
  run_recurrence(recurrence, *threads, kGates * H * H, weights.panels(), pass);
}

void rtf_lstm_backward_f32(const RtfLstmShape* shape, int rounded, const float* r, const float* c0, const float* c,
                           const float* gates, const float* dh, const float* dc_last, const float* dh_last, float* dz,
                           float* dc0, float* dh0, float* scratch, const RtfThreads* threads) {
  using namespace rtf;
  const Recurrence recurrence(*shape, rounded);
  const int64_t H = shape->units, depth = kGates * H;
  Arena arena(scratch);
  const BackwardMemory<kGates> memory(arena, recurrence);
  const TransposedWeights weights =
      TransposedWeights::transposed(recurrence, r, depth, H, kGates, memory.weights, *threads);
  const Backward pass{
      .ragged = ragged_of(recurrence),
      .units = H,
      .c0 = c0,
      .c = c,
      .gates = gates,
      .dh = dh,
      .dc_last = dc_last,
      .dh_last = dh_last,
      .weights = weights,
      .tiles = {memory.tiles[0], memory.tiles[1]},
      .dz = dz,
      .dc0 = dc0,
      .dh0 = dh0,
  };
  run_recurrence(recurrence, *threads, kGates * H * H, weights.panels(), pass);
}
}
