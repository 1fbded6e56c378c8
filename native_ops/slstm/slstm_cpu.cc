// The sLSTM kernels for CPU. A step of some units is one product with their packed recurrent weights
// (common/weights.h), followed by the cell (common/vector.h) while the sums are in registers or a near cache.
//
// h depends on c, n and m only through c exp(m) and n exp(m), so its gradients satisfy dm = c dc + n dn. The backward
// pass carries the excess dm - c dc - n dn instead of dm. Only gradients of the last state make it differ from 0, and a
// frame passes it on unchanged, to the state before it or to the input gate, whichever determined m.
#include "../common/recurrence.h"
#include "slstm.h"

namespace rtf {
namespace {

constexpr int kGates = 4;  // i, f, z, o
constexpr float kTiny = 1e-30f;

inline Vec exponential(Vec x) {
  Vec scale, rest;
  exp_parts(x, &scale, &rest);
  return scale + scale * rest;
}

// log(1 + e) = 2 artanh(e / (2 + e)), by its series, for e = exp(-|x|) <= 1.
inline Vec log_sigmoid(Vec x) {
  const Vec zero{}, e = exponential(x < zero ? x : -x), s = e / (splat(2.0f) + e), q = s * s;
  Vec p = splat(1.0f / 13.0f);
  for (float k : {11.0f, 9.0f, 7.0f, 5.0f, 3.0f, 1.0f}) p = p * q + splat(1.0f / k);
  return (x < zero ? x : zero) - splat(2.0f) * s * p;
}

// What both passes compute from the gates and the state before a step.
template <bool kWhole>
struct Gates {
  Vec kept, m, i, f, z, o;

  Gates(Vec in, Vec forget, Vec cell, Vec out, Vec m_before, bool exp_forget)
      : kept((exp_forget ? forget : log_sigmoid(forget)) + m_before),
        m(at_least(kept, in)),
        i(exponential(in - m)),
        f(exponential(kept - m)),
        z(tanh(cell)),
        o(sigmoid(out)) {}
};

struct Forward {
  Ragged ragged;
  int64_t units;
  bool exp_forget;
  const float* pre;  // [T, B, 4H]
  States c, n, m, h;
  Weights<kGates> weights;
  FactorRows tiles[2];  // h_{t-1} of even and of odd steps
  RtfSLstmState states;
  float* gates;
  RtfSLstmState last;

  // Prefetches what the next step of sequence b reads: the arrays do not fit into a cache.
  void prefetch(int32_t b, int64_t step, int64_t u) const {
    if (step + 1 >= ragged.length(b)) return;
    const int64_t next = ragged.at(b, step + 1) * units;
    for (int gate = 0; gate < kGates; ++gate) {
      if (pre != gates) prefetch_to_read(pre + (next * kGates + gate * units) + u);
      prefetch_to_write(gates + (next * kGates + gate * units) + u);
    }
    for (float* part : {states.c, states.n, states.m, states.h}) prefetch_to_write(part + next + u);
  }

  template <bool kWhole>
  void cell(int32_t b, int64_t step, int64_t u, int lanes, const Vec* sums, int64_t row, const FactorRows& next) const {
    const int64_t H = units, at = ragged.at(b, step), to = at * H + u;
    const float* in = pre + at * kGates * H + u;
    float* g = gates + at * kGates * H + u;
    prefetch(b, step, u);
    Vec x[kGates];
    for (int gate = 0; gate < kGates; ++gate) {
      x[gate] = load_n<kWhole>(in + gate * H, lanes) + sums[gate];
    }
    const Gates<kWhole> v(x[0], x[1], x[2], x[3], load_n<kWhole>(m.before(b, step) + u, lanes), exp_forget);
    const Vec c_now = v.f * load_n<kWhole>(c.before(b, step) + u, lanes) + v.i * v.z;
    const Vec n_now = v.f * load_n<kWhole>(n.before(b, step) + u, lanes) + v.i;
    const Vec out = v.o * c_now / at_least(n_now, splat(kTiny));
    for (int gate = 0; gate < kGates; ++gate) store_n<kWhole>(g + gate * H, x[gate], lanes);
    store_n<kWhole>(states.c + to, c_now, lanes);
    store_n<kWhole>(states.n + to, n_now, lanes);
    store_n<kWhole>(states.m + to, v.m, lanes);
    store_n<kWhole>(states.h + to, out, lanes);
    next.put<kWhole>(row, u, out, lanes);
  }

  void begin(const Rows& rows) const {
    const FactorRows first = rows.of(tiles[0]);
    for (int64_t row = 0; row < rows.active(-1); ++row) first.put_row(row, h.before(rows[row], 0), units);
  }

  int64_t n_steps(const Rows& rows) const { return rows.frames(); }
  int64_t n_panels(int64_t) const { return weights.panels(); }

  void run(const Rows& rows, int64_t step, int64_t first, int64_t last_panel) const {
    const FactorRows now = rows.of(tiles[step % 2]), next = rows.of(tiles[(step + 1) % 2]);
    weights.multiply([&](int64_t row) { return h.before(rows[row], step); }, now, rows.active(step), first, last_panel,
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
    const States parts[] = {c, n, m, h};
    float* const ends[] = {last.c, last.n, last.m, last.h};
    float* const all[] = {states.c, states.n, states.m, states.h};
    for (int32_t b : rows.all()) {
      for (int part = 0; part < 4; ++part) {
        const float* end = parts[part].before(b, ragged.length(b));
        std::copy(end, end + units, ends[part] + b * units);
        zero_padding(ragged, b, units, all[part]);
      }
      zero_padding(ragged, b, kGates * units, gates);
    }
  }
};

struct Backward {
  Ragged ragged;
  int64_t units;
  bool exp_forget;
  States c, n, m;
  const float *gates, *dh;
  RtfSLstmConstState dlast;
  TransposedWeights weights;
  FactorRows tiles[2];  // dz of even and of odd steps
  float* dz;
  RtfSLstmState dinitial;  // c, n and m [B, H] hold the gradients of c and n, and the excess, meanwhile

  void prefetch(int32_t b, int64_t step, int64_t u) const {
    if (step == 0) return;
    const int64_t at = ragged.at(b, step - 1);
    for (int gate = 0; gate < kGates; ++gate) {
      if (gates != dz) prefetch_to_read(gates + (at * kGates + gate) * units + u);
      prefetch_to_write(dz + (at * kGates + gate) * units + u);
    }
    prefetch_to_read(dh + at * units + u);
    if (step > 1) {
      for (const States& part : {c, n, m}) prefetch_to_read(part.before(b, step - 1) + u);
    }
  }

  // From the gradient of the output after a step, as far as it comes from the next step, to that of the gate inputs.
  template <bool kWhole>
  void cell(int32_t b, int64_t step, int64_t u, int lanes, Vec dh_state, int64_t row, const FactorRows& to) const {
    const int64_t H = units, at = ragged.at(b, step), padded = round_up(H, kLanes), state = b * H + u;
    const float* g = gates + at * kGates * H + u;
    float* d = dz + at * kGates * H + u;
    const Vec one = splat(1.0f), zero{};
    prefetch(b, step, u);
    const Vec in = load_n<kWhole>(g, lanes), forget = load_n<kWhole>(g + H, lanes);
    const Gates<kWhole> v(in, forget, load_n<kWhole>(g + 2 * H, lanes), load_n<kWhole>(g + 3 * H, lanes),
                          load_n<kWhole>(m.before(b, step) + u, lanes), exp_forget);
    const Vec c_before = load_n<kWhole>(c.before(b, step) + u, lanes);
    const Vec n_before = load_n<kWhole>(n.before(b, step) + u, lanes);
    const Vec inverse = one / at_least(load_n<kWhole>(n.all + at * H + u, lanes), splat(kTiny));
    const Vec mean = load_n<kWhole>(c.all + at * H + u, lanes) * inverse;
    const Vec excess = load_n<kWhole>(dinitial.m + state, lanes), passed = v.kept >= in ? excess : zero;
    const Vec dh_total = dh_state + load_n<kWhole>(dh + at * H + u, lanes), dc_by_h = dh_total * v.o * inverse;
    const Vec dc = load_n<kWhole>(dinitial.c + state, lanes) + dc_by_h;
    const Vec dn = load_n<kWhole>(dinitial.n + state, lanes) - dc_by_h * mean;
    const Vec dkept = v.f * (dc * c_before + dn * n_before) + passed;
    const Vec d_gates[kGates] = {v.i * (dc * v.z + dn) + (excess - passed),
                                 exp_forget ? dkept : dkept * sigmoid(-forget), dc * v.i * (one - v.z * v.z),
                                 dh_total * mean * v.o * (one - v.o)};
    for (int gate = 0; gate < kGates; ++gate) {
      store_n<kWhole>(d + gate * H, d_gates[gate], lanes);
      to.put<kWhole>(row, gate * padded + u, d_gates[gate], lanes);
    }
    store_n<kWhole>(dinitial.c + state, dc * v.f, lanes);
    store_n<kWhole>(dinitial.n + state, dn * v.f, lanes);
    store_n<kWhole>(dinitial.m + state, passed, lanes);
  }

  void begin(const Rows& rows) const {
    for (int32_t b : rows.all()) {
      const float *c_end = c.before(b, ragged.length(b)), *n_end = n.before(b, ragged.length(b));
      for (int64_t u = 0; u < units; ++u) {
        const int64_t at = b * units + u;
        dinitial.c[at] = dlast.c[at];
        dinitial.n[at] = dlast.n[at];
        dinitial.m[at] = dlast.m[at] - c_end[u] * dlast.c[at] - n_end[u] * dlast.n[at];
      }
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
  const float* dh_end() const { return dlast.h; }
  float* dh_begin() const { return dinitial.h; }

  void end(const Rows& rows) const {
    for (int32_t b : rows.all()) {
      for (int64_t u = 0; u < units; ++u) {
        const int64_t at = b * units + u;
        dinitial.m[at] += c.initial[at] * dinitial.c[at] + n.initial[at] * dinitial.n[at];
      }
    }
  }
};

}  // namespace
}  // namespace rtf

extern "C" {

int rtf_slstm_rounds(void) { return rtf::kRounds; }

int64_t rtf_slstm_scratch_size(const RtfSLstmShape* shape, int rounded) {
  return rtf::scratch_of_passes<rtf::ForwardMemory<rtf::kGates>, rtf::BackwardMemory<rtf::kGates>>(
      rtf::Recurrence(*shape, rounded));
}

void rtf_slstm_forward_f32(const RtfSLstmShape* shape, int rounded, int exp_forget, const float* z, const float* r,
                           const RtfSLstmConstState* initial, const RtfSLstmState* states, float* gates,
                           const RtfSLstmState* last, float* scratch, const RtfThreads* threads) {
  using namespace rtf;
  const Recurrence recurrence(*shape, rounded);
  const int64_t H = shape->units;
  Arena arena(scratch);
  const ForwardMemory<kGates> memory(arena, recurrence);
  const Weights<kGates> weights = Weights<kGates>::of(recurrence, r, H, kGates * H, memory.weights, *threads);
  const Ragged ragged = ragged_of(recurrence);
  const auto part = [&](const float* first, const float* all) { return States{ragged, H, first, all}; };
  const Forward pass{
      .ragged = ragged,
      .units = H,
      .exp_forget = exp_forget != 0,
      .pre = z,
      .c = part(initial->c, states->c),
      .n = part(initial->n, states->n),
      .m = part(initial->m, states->m),
      .h = part(initial->h, states->h),
      .weights = weights,
      .tiles = {memory.tiles[0], memory.tiles[1]},
      .states = *states,
      .gates = gates,
      .last = *last,
  };
  run_recurrence(recurrence, *threads, kGates * H * H, weights.panels(), pass);
}

void rtf_slstm_backward_f32(const RtfSLstmShape* shape, int rounded, int exp_forget, const float* r,
                            const RtfSLstmConstState* initial, const RtfSLstmConstState* states, const float* gates,
                            const float* dh, const RtfSLstmConstState* dlast, float* dz, const RtfSLstmState* dinitial,
                            float* scratch, const RtfThreads* threads) {
  using namespace rtf;
  const Recurrence recurrence(*shape, rounded);
  const int64_t H = shape->units, depth = kGates * H;
  Arena arena(scratch);
  const BackwardMemory<kGates> memory(arena, recurrence);
  const TransposedWeights weights =
      TransposedWeights::transposed(recurrence, r, depth, H, kGates, memory.weights, *threads);
  const Ragged ragged = ragged_of(recurrence);
  const auto part = [&](const float* first, const float* all) { return States{ragged, H, first, all}; };
  const Backward pass{
      .ragged = ragged,
      .units = H,
      .exp_forget = exp_forget != 0,
      .c = part(initial->c, states->c),
      .n = part(initial->n, states->n),
      .m = part(initial->m, states->m),
      .gates = gates,
      .dh = dh,
      .dlast = *dlast,
      .weights = weights,
      .tiles = {memory.tiles[0], memory.tiles[1]},
      .dz = dz,
      .dinitial = *dinitial,
  };
  run_recurrence(recurrence, *threads, kGates * H * H, weights.panels(), pass);
}
}
