// The GRU kernels for CPU. A frame takes two steps, because the candidate needs the reset gates of all units. Each is
// one product with packed recurrent weights (common/weights.h), followed by that part of the cell while the sums are in
// registers or a near cache.
#include "../common/recurrence.h"
#include "gru.h"

namespace rtf {
namespace {

constexpr int kGates = 3;  // r, u, c

struct Forward {
  Ragged ragged;
  int64_t units;
  States states;
  const float* z;
  Weights<2> of_gates;
  Weights<1> of_candidate;
  FactorRows state_tiles, reset_tiles;
  float *h, *gates, *h_last, *reset;  // reset [B, H]: r h_{t-1}

  template <bool kWhole>
  void gate(int32_t b, int64_t step, int64_t u, int n, Vec r_sum, Vec u_sum, int64_t row, const FactorRows& to) const {
    const int64_t H = units, at = ragged.at(b, step) * kGates * H + u;
    const Vec r = sigmoid(load_n<kWhole>(z + at, n) + r_sum), state = r * load_n<kWhole>(states.before(b, step) + u, n);
    store_n<kWhole>(gates + at, r, n);
    store_n<kWhole>(gates + at + H, sigmoid(load_n<kWhole>(z + at + H, n) + u_sum), n);
    store_n<kWhole>(reset + b * H + u, state, n);
    to.put<kWhole>(row, u, state, n);
  }

  // Prefetches what the next frame reads: the arrays do not fit into a cache.
  void prefetch(int32_t b, int64_t step, int64_t u) const {
    if (step + 1 >= ragged.length(b)) return;
    const int64_t next = ragged.at(b, step + 1) * units;
    for (int gate = 0; gate < kGates; ++gate) {
      if (z != gates) prefetch_to_read(z + (next * kGates + gate * units) + u);
      prefetch_to_write(gates + (next * kGates + gate * units) + u);
    }
    prefetch_to_write(h + next + u);
  }

  template <bool kWhole>
  void candidate(int32_t b, int64_t step, int64_t u, int n, Vec sum, int64_t row, const FactorRows& to) const {
    const int64_t H = units, at = ragged.at(b, step), c_at = (at * kGates + 2) * H + u;
    prefetch(b, step, u);
    const Vec c = tanh(load_n<kWhole>(z + c_at, n) + sum), update = load_n<kWhole>(gates + c_at - H, n);
    const Vec state = c + update * (load_n<kWhole>(states.before(b, step) + u, n) - c);
    store_n<kWhole>(gates + c_at, c, n);
    store_n<kWhole>(h + at * H + u, state, n);
    to.put<kWhole>(row, u, state, n);
  }

  void begin(const Rows& rows) const {
    const FactorRows first = rows.of(state_tiles);
    for (int64_t row = 0; row < rows.active(-1); ++row) first.put_row(row, states.before(rows[row], 0), units);
  }

  int64_t n_steps(const Rows& rows) const { return 2 * rows.frames(); }
  int64_t n_panels(int64_t index) const { return index % 2 ? of_candidate.panels() : of_gates.panels(); }

  void run(const Rows& rows, int64_t index, int64_t first, int64_t last) const {
    if (index % 2)
      run_candidate(rows, index / 2, first, last);
    else
      run_gates(rows, index / 2, first, last);
  }

  void run_gates(const Rows& rows, int64_t step, int64_t first, int64_t last) const {
    const FactorRows to = rows.of(reset_tiles);
    const auto before = [&](int64_t row) { return states.before(rows[row], step); };
    of_gates.multiply(
        before, rows.of(state_tiles), rows.active(step), first, last,
        step % 2, [&](int64_t panel, auto width, int64_t row, const Vec* sums) __attribute__((always_inline)) {
          constexpr int kHalf = width / 2;  // vectors of r, and of u
          const auto pair = [&](int64_t u, auto whole, int n, Vec sum) __attribute__((always_inline)) {
            const Vec second = sums[kHalf + u / kLanes % kHalf];
            gate<decltype(whole)::value>(rows[row], step, u, n, sum, second, row, to);
          };
          for_units<kHalf>(panel * kHalf * kLanes, units, sums, pair);
        });
  }

  void run_candidate(const Rows& rows, int64_t step, int64_t first, int64_t last) const {
    const FactorRows to = rows.of(state_tiles);
    const auto after_reset = [&](int64_t row) { return reset + rows[row] * units; };
    of_candidate.multiply(
        after_reset, rows.of(reset_tiles), rows.active(step), first, last,
        step % 2, [&](int64_t panel, auto width, int64_t row, const Vec* sums) __attribute__((always_inline)) {
          const auto vector = [&](int64_t u, auto whole, int n, Vec sum) __attribute__((always_inline)) {
            candidate<decltype(whole)::value>(rows[row], step, u, n, sum, row, to);
          };
          for_units<width>(panel * width * kLanes, units, sums, vector);
        });
  }

  void end(const Rows& rows) const {
    for (int32_t b : rows.all()) {
      const float* h_end = states.before(b, ragged.length(b));
      std::copy(h_end, h_end + units, h_last + b * units);
      zero_padding(ragged, b, units, h);
      zero_padding(ragged, b, kGates * units, gates);
    }
  }
};

struct Backward {
  Ragged ragged;
  int64_t units;
  States states;
  const float *gates, *dh, *dh_last;
  TransposedWeights of_gates, of_candidate;
  FactorRows gate_tiles[2], candidate_tiles;  // dz of r and u in even and in odd steps; of c
  float *dz, *reset_h, *dh0;  // dh0 [B, H] holds the part of the state's gradient that does not come from a product

  // From the gradient of the state after a step to those of the candidate and the update gate.
  template <bool kWhole>
  void candidate(int32_t b, int64_t step, int64_t unit, int n, Vec sum, int64_t row, const FactorRows& du_tiles,
                 const FactorRows& dc_tiles) const {
    const int64_t H = units, at = ragged.at(b, step), g = at * kGates * H + unit;
    const Vec one = splat(1.0f), u = load_n<kWhole>(gates + g + H, n), c = load_n<kWhole>(gates + g + 2 * H, n);
    float* state = dh0 + b * H + unit;
    const Vec total = load_n<kWhole>(state, n) + sum + load_n<kWhole>(dh + at * H + unit, n);
    const Vec h_before = load_n<kWhole>(states.before(b, step) + unit, n);
    const Vec du = total * (h_before - c) * u * (one - u), dc = total * (one - u) * (one - c * c);
    store_n<kWhole>(dz + g + H, du, n);
    store_n<kWhole>(dz + g + 2 * H, dc, n);
    du_tiles.put<kWhole>(row, round_up(H, kLanes) + unit, du, n);
    dc_tiles.put<kWhole>(row, unit, dc, n);
    store_n<kWhole>(state, total * u, n);
  }

  void prefetch(int32_t b, int64_t step, int64_t u) const {
    if (step == 0) return;
    const int64_t at = ragged.at(b, step - 1);
    for (int gate = 0; gate < kGates; ++gate) {
      if (gates != dz) prefetch_to_read(gates + (at * kGates + gate) * units + u);
      prefetch_to_write(dz + (at * kGates + gate) * units + u);
    }
    prefetch_to_write(reset_h + at * units + u);
    prefetch_to_read(dh + at * units + u);
    if (step > 1) prefetch_to_read(states.all + ragged.at(b, step - 2) * units + u);
  }

  // Then to that of the reset gate; d_reset: the gradient of r h_{t-1}.
  template <bool kWhole>
  void reset(int32_t b, int64_t step, int64_t unit, int n, Vec d_reset, int64_t row, const FactorRows& to) const {
    const int64_t H = units, at = ragged.at(b, step), g = at * kGates * H + unit;
    const Vec r = load_n<kWhole>(gates + g, n), reset = r * load_n<kWhole>(states.before(b, step) + unit, n);
    float* state = dh0 + b * H + unit;
    prefetch(b, step, unit);
    store_n<kWhole>(reset_h + at * H + unit, reset, n);
    const Vec dr = d_reset * reset * (splat(1.0f) - r);
    store_n<kWhole>(dz + g, dr, n);
    to.put<kWhole>(row, unit, dr, n);
    store_n<kWhole>(state, load_n<kWhole>(state, n) + d_reset * r, n);
  }

  void begin(const Rows& rows) const {
    for (int32_t b : rows.all()) {
      std::copy(dh_last + b * units, dh_last + (b + 1) * units, dh0 + b * units);
      zero_padding(ragged, b, kGates * units, dz);
      zero_padding(ragged, b, units, reset_h);
    }
  }

  // Two per frame, plus one for the gradient of the initial state.
  int64_t n_steps(const Rows& rows) const { return 2 * rows.frames() + 1; }
  int64_t n_panels(int64_t) const { return of_gates.panels(); }

  void run(const Rows& rows, int64_t index, int64_t first, int64_t last) const {
    const int64_t step = rows.frames() - 1 - index / 2;
    if (index % 2)
      run_reset(rows, step, first, last);
    else
      run_candidate(rows, step, first, last);
  }

  void run_candidate(const Rows& rows, int64_t step, int64_t first, int64_t last) const {
    const int64_t n_before = rows.active(step + 1);
    const FactorRows du_tiles = rows.of(gate_tiles[step & 1]), dc_tiles = rows.of(candidate_tiles);
    const auto finish = [&](int64_t panel, auto width, int64_t row, const Vec* sums) __attribute__((always_inline)) {
      const auto vector = [&](int64_t u, auto whole, int n, Vec sum) __attribute__((always_inline)) {
        constexpr bool kWhole = decltype(whole)::value;
        float* state = dh0 + rows[row] * units + u;
        if (step < 0)
          store_n<kWhole>(state, load_n<kWhole>(state, n) + sum, n);
        else
          candidate<kWhole>(rows[row], step, u, n, sum, row, du_tiles, dc_tiles);
      };
      for_units<width>(panel * width * kLanes, units, sums, vector);
    };
    of_gates.multiply([&](int64_t row) { return dz + ragged.at(rows[row], step + 1) * kGates * units; },
                      rows.of(gate_tiles[(step + 1) & 1]), n_before, first, last, step & 1, finish);
    if (step < 0) return;
    of_gates.for_panels(first, last, [&](int64_t panel, auto width) {
      const Vec nothing[width] = {};
      for (int64_t row = n_before; row < rows.active(step); ++row)
        finish(panel, width, row, nothing);  // rows whose last step it is
    });
  }

  void run_reset(const Rows& rows, int64_t step, int64_t first, int64_t last) const {
    const FactorRows to = rows.of(gate_tiles[step & 1]);
    of_candidate.multiply([&](int64_t row) { return dz + (ragged.at(rows[row], step) * kGates + 2) * units; },
                          rows.of(candidate_tiles), rows.active(step), first, last, step % 2,
                          [&](int64_t panel, auto width, int64_t row, const Vec* sums) __attribute__((always_inline)) {
                            const auto vector = [&](int64_t u, auto whole, int n, Vec sum)
                                __attribute__((always_inline)) {
                              reset<decltype(whole)::value>(rows[row], step, u, n, sum, row, to);
                            };
                            for_units<width>(panel * width * kLanes, units, sums, vector);
                          });
  }

  void end(const Rows&) const {}
};

// The scratch memory of a pass.
struct GruForwardMemory {
  float *of_gates, *of_candidate;  // packed weights [H, 2H] and [H, H]
  FactorRows state_tiles, reset_tiles;
  float* reset;  // [B, H]

  GruForwardMemory(Arena& arena, const Recurrence& s)
      : of_gates(Weights<2>::take(arena, s, s.units, 2 * s.units)),
        of_candidate(Weights<1>::take(arena, s, s.units, s.units)),
        state_tiles(take_rows(arena, s, s.units)),
        reset_tiles(take_rows(arena, s, s.units)),
        reset(arena.take(s.batch * s.units)) {}
};

struct GruBackwardMemory {
  float *of_gates, *of_candidate;  // packed weights [2H, H] and [H, H]
  FactorRows gate_tiles[2], candidate_tiles;

  GruBackwardMemory(Arena& arena, const Recurrence& s)
      : of_gates(TransposedWeights::take(arena, s, 2 * s.units, s.units, 2)),
        of_candidate(TransposedWeights::take(arena, s, s.units, s.units)),
        gate_tiles{take_rows(arena, s, 2 * s.units, 2), take_rows(arena, s, 2 * s.units, 2)},
        candidate_tiles(take_rows(arena, s, s.units)) {}
};

}  // namespace
}  // namespace rtf

extern "C" {

int rtf_gru_rounds(void) { return rtf::kRounds; }

int64_t rtf_gru_scratch_size(const RtfGruShape* shape, int rounded) {
  return rtf::scratch_of_passes<rtf::GruForwardMemory, rtf::GruBackwardMemory>(rtf::Recurrence(*shape, rounded));
}

void rtf_gru_forward_f32(const RtfGruShape* shape, int rounded, const float* z, const float* r_gates,
                         const float* r_candidate, const float* h0, float* h, float* gates, float* h_last,
                         float* scratch, const RtfThreads* threads) {
  using namespace rtf;
  const Recurrence recurrence(*shape, rounded);
  const int64_t H = shape->units;
  Arena arena(scratch);
  const GruForwardMemory memory(arena, recurrence);
  const Weights<2> of_gates = Weights<2>::of(recurrence, r_gates, H, 2 * H, memory.of_gates, *threads);
  const Weights<1> of_candidate = Weights<1>::of(recurrence, r_candidate, H, H, memory.of_candidate, *threads);
  const Ragged ragged = ragged_of(recurrence);
  const Forward pass{
      .ragged = ragged,
      .units = H,
      .states = {ragged, H, h0, h},
      .z = z,
      .of_gates = of_gates,
      .of_candidate = of_candidate,
      .state_tiles = memory.state_tiles,
      .reset_tiles = memory.reset_tiles,
      .h = h,
      .gates = gates,
      .h_last = h_last,
      .reset = memory.reset,
  };
  run_recurrence(recurrence, *threads, kGates * H * H, of_candidate.panels(), pass);
}

void rtf_gru_backward_f32(const RtfGruShape* shape, int rounded, const float* r_gates, const float* r_candidate,
                          const float* h0, const float* h, const float* gates, const float* dh, const float* dh_last,
                          float* dz, float* reset_h, float* dh0, float* scratch, const RtfThreads* threads) {
  using namespace rtf;
  const Recurrence recurrence(*shape, rounded);
  const int64_t H = shape->units;
  Arena arena(scratch);
  const GruBackwardMemory memory(arena, recurrence);
  const TransposedWeights of_gates =
      TransposedWeights::transposed(recurrence, r_gates, 2 * H, H, 2, memory.of_gates, *threads);
  const TransposedWeights of_candidate =
      TransposedWeights::transposed(recurrence, r_candidate, H, H, 1, memory.of_candidate, *threads);
  const Ragged ragged = ragged_of(recurrence);
  const Backward pass{
      .ragged = ragged,
      .units = H,
      .states = {ragged, H, h0, h},
      .gates = gates,
      .dh = dh,
      .dh_last = dh_last,
      .of_gates = of_gates,
      .of_candidate = of_candidate,
      .gate_tiles = {memory.gate_tiles[0], memory.gate_tiles[1]},
      .candidate_tiles = memory.candidate_tiles,
      .dz = dz,
      .reset_h = reset_h,
      .dh0 = dh0,
  };
  run_recurrence(recurrence, *threads, kGates * H * H, of_candidate.panels(), pass);
}
}
