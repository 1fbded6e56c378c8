// The GRU kernels for CPU. A frame takes two steps, as the candidate needs the reset gates of all units: each is one product with
// packed recurrent weights (common/packed_gemm.h), and while its sums are in registers that part of the cell follows.
#include "gru.h"

#include "../common/recurrence.h"

namespace rtf {
namespace {

constexpr int kGates = 3;                // r, u, c
constexpr int kHalf = kVectors / 2;      // vectors of r, and of u, in a panel of the gates
constexpr int kUnitsOfGates = kHalf * kLanes;

// Memory of a pass: both matrices, then something for each unit of each sequence.
struct Scratch {
  float *gates, *candidate, *units;

  Scratch(const RtfGruShape& shape, float* memory) {
    gates = align_up(memory);
    candidate = gates + size_of_gates(shape.units);
    units = candidate + packed_size(shape.units, shape.units);
  }

  static int64_t size_of_gates(int64_t H) { return std::max(packed_size(H, 2 * H, 2), packed_size(2 * H, H)); }

  static int64_t size(const RtfGruShape& shape) {
    return size_of_gates(shape.units) + packed_size(shape.units, shape.units) + shape.batch * shape.units + kLanes;
  }
};

// Where the state before a step is.
struct States {
  Ragged ragged;
  int64_t units;
  const float *initial, *all;

  const float* before(int32_t b, int64_t step) const {
    return step == 0 ? initial + b * units : all + ragged.at(b, step - 1) * units;
  }
};

struct Forward {
  Ragged ragged;
  int64_t units;
  States states;
  const float* z;
  Matrix of_gates, of_candidate;
  float *h, *gates, *h_last, *reset;  // reset [B, H]: r h_{t-1}

  template <bool kWhole>
  void gate(int32_t b, int64_t step, int64_t u, int n, Vec r_sum, Vec u_sum) const {
    const int64_t H = units, at = ragged.at(b, step) * kGates * H + u;
    const Vec r = sigmoid(load_n<kWhole>(z + at, n) + r_sum);
    store_n<kWhole>(gates + at, r, n);
    store_n<kWhole>(gates + at + H, sigmoid(load_n<kWhole>(z + at + H, n) + u_sum), n);
    store_n<kWhole>(reset + b * H + u, r * load_n<kWhole>(states.before(b, step) + u, n), n);
  }

  // What the next frame reads from memory is asked for now: the arrays are larger than a cache.
  void prefetch(int32_t b, int64_t step, int64_t u) const {
    if (step + 1 >= ragged.length(b)) return;
    const float* next = z + ragged.at(b, step + 1) * kGates * units + u;
    for (int gate = 0; gate < kGates; ++gate) __builtin_prefetch(next + gate * units, 1);
  }

  template <bool kWhole>
  void candidate(int32_t b, int64_t step, int64_t u, int n, Vec sum) const {
    const int64_t H = units, at = ragged.at(b, step), c_at = (at * kGates + 2) * H + u;
    prefetch(b, step, u);
    const Vec c = tanh(load_n<kWhole>(z + c_at, n) + sum), update = load_n<kWhole>(gates + c_at - H, n);
    store_n<kWhole>(gates + c_at, c, n);
    store_n<kWhole>(h + at * H + u, c + update * (load_n<kWhole>(states.before(b, step) + u, n) - c), n);
  }

  void begin(const Rows&) const {}
  int64_t n_steps(const Rows& rows) const { return 2 * rows.frames(); }
  int64_t n_panels(int64_t index) const { return (index % 2 ? of_candidate : of_gates).panels(); }

  void run(const Rows& rows, int64_t index, int64_t first, int64_t last) const {
    for (int64_t panel = first; panel < last; ++panel) index % 2 ? run_candidate(rows, index / 2, panel) : run_gates(rows, index / 2, panel);
  }

  void run_gates(const Rows& rows, int64_t step, int64_t panel) const {
    multiply_panel([&](int64_t row) { return states.before(rows[row], step); }, rows.active(step), of_gates, panel,
                   [&](int64_t row, const Vec* sums) {
                     const auto each = [&](int64_t u, auto whole, int n, Vec sum, Vec second) {
                       gate<decltype(whole)::value>(rows[row], step, u, n, sum, second);
                     };
                     for_unit_pairs(panel * kUnitsOfGates, units, sums, each);
                   });
  }

  template <typename Function>
  static void for_unit_pairs(int64_t begin, int64_t units, const Vec* sums, const Function& function) {
    const auto pair = [&](int64_t u, auto whole, int n, Vec sum) { function(u, whole, n, sum, sums[kHalf + (u - begin) / kLanes]); };
    for_units(begin, std::min(units, begin + kUnitsOfGates), sums, pair);
  }

  void run_candidate(const Rows& rows, int64_t step, int64_t panel) const {
    multiply_panel([&](int64_t row) { return reset + rows[row] * units; }, rows.active(step), of_candidate, panel,
                   [&](int64_t row, const Vec* sums) {
                     for_units(panel * kPanel, units, sums, [&](int64_t u, auto whole, int n, Vec sum) {
                       candidate<decltype(whole)::value>(rows[row], step, u, n, sum);
                     });
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
  Matrix of_gates, of_candidate;  // both transposed
  float *dz, *reset_h, *dh0;      // dh0 [B, H] holds the part of the gradient of the state that comes by no product

  // From the gradient of the state after a step to those of the candidate and the update gate.
  template <bool kWhole>
  void candidate(int32_t b, int64_t step, int64_t unit, int n, Vec sum) const {
    const int64_t H = units, at = ragged.at(b, step), g = at * kGates * H + unit;
    const Vec one = splat(1.0f), u = load_n<kWhole>(gates + g + H, n), c = load_n<kWhole>(gates + g + 2 * H, n);
    float* state = dh0 + b * H + unit;
    const Vec total = load_n<kWhole>(state, n) + sum + load_n<kWhole>(dh + at * H + unit, n);
    const Vec h_before = load_n<kWhole>(states.before(b, step) + unit, n);
    store_n<kWhole>(dz + g + H, total * (h_before - c) * u * (one - u), n);
    store_n<kWhole>(dz + g + 2 * H, total * (one - u) * (one - c * c), n);
    store_n<kWhole>(state, total * u, n);
  }

  void prefetch(int32_t b, int64_t step, int64_t u) const {
    if (step == 0) return;
    const int64_t at = ragged.at(b, step - 1);
    for (int gate = 0; gate < kGates; ++gate) __builtin_prefetch(gates + (at * kGates + gate) * units + u, 1);
    __builtin_prefetch(dh + at * units + u);
    if (step > 1) __builtin_prefetch(states.all + ragged.at(b, step - 2) * units + u);
  }

  // Then to that of the reset gate; d_reset: the gradient of r h_{t-1}.
  template <bool kWhole>
  void reset(int32_t b, int64_t step, int64_t unit, int n, Vec d_reset) const {
    const int64_t H = units, at = ragged.at(b, step), g = at * kGates * H + unit;
    const Vec r = load_n<kWhole>(gates + g, n), reset = r * load_n<kWhole>(states.before(b, step) + unit, n);
    float* state = dh0 + b * H + unit;
    prefetch(b, step, unit);
    store_n<kWhole>(reset_h + at * H + unit, reset, n);
    store_n<kWhole>(dz + g, d_reset * reset * (splat(1.0f) - r), n);
    store_n<kWhole>(state, load_n<kWhole>(state, n) + d_reset * r, n);
  }

  void begin(const Rows& rows) const {
    for (int32_t b : rows.all()) {
      std::copy(dh_last + b * units, dh_last + (b + 1) * units, dh0 + b * units);
      zero_padding(ragged, b, kGates * units, dz);
      zero_padding(ragged, b, units, reset_h);
    }
  }

  // One more than two for each frame: the last one has the gradient of the initial state.
  int64_t n_steps(const Rows& rows) const { return 2 * rows.frames() + 1; }
  int64_t n_panels(int64_t) const { return of_gates.panels(); }

  void run(const Rows& rows, int64_t index, int64_t first, int64_t last) const {
    const int64_t step = rows.frames() - 1 - index / 2;
    for (int64_t panel = first; panel < last; ++panel) index % 2 ? run_reset(rows, step, panel) : run_candidate(rows, step, panel);
  }

  void run_candidate(const Rows& rows, int64_t step, int64_t panel) const {
    const int64_t n_before = rows.active(step + 1);
    const auto finish = [&](int64_t row, const Vec* sums) {
      for_units(panel * kPanel, units, sums, [&](int64_t u, auto whole, int n, Vec sum) {
        constexpr bool kWhole = decltype(whole)::value;
        float* state = dh0 + rows[row] * units + u;
        if (step < 0)
          store_n<kWhole>(state, load_n<kWhole>(state, n) + sum, n);
        else
          candidate<kWhole>(rows[row], step, u, n, sum);
      });
    };
    multiply_panel([&](int64_t row) { return dz + ragged.at(rows[row], step + 1) * kGates * units; }, n_before, of_gates, panel,
                   finish);
    const Vec nothing[kVectors] = {};
    for (int64_t row = n_before; step >= 0 && row < rows.active(step); ++row) finish(row, nothing);  // whose last step it is
  }

  void run_reset(const Rows& rows, int64_t step, int64_t panel) const {
    multiply_panel([&](int64_t row) { return dz + (ragged.at(rows[row], step) * kGates + 2) * units; }, rows.active(step),
                   of_candidate, panel, [&](int64_t row, const Vec* sums) {
                     for_units(panel * kPanel, units, sums, [&](int64_t u, auto whole, int n, Vec sum) {
                       reset<decltype(whole)::value>(rows[row], step, u, n, sum);
                     });
                   });
  }

  void end(const Rows&) const {}
};

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_gru_scratch_size(const RtfGruShape* shape) { return rtf::Scratch::size(*shape); }

void rtf_gru_forward_f32(const RtfGruShape* shape, const float* z, const float* r_gates, const float* r_candidate,
                         const float* h0, float* h, float* gates, float* h_last, float* scratch,
                         const RtfThreads* threads) {
  using namespace rtf;
  const int64_t H = shape->units;
  const Scratch memory(*shape, scratch);
  const Matrix of_gates = recurrent_matrix(*shape, r_gates, H, 2 * H, 2, memory.gates, *threads);
  const Matrix of_candidate = recurrent_matrix(*shape, r_candidate, H, H, 1, memory.candidate, *threads);
  const Ragged ragged = ragged_of(*shape);
  const Forward pass{ragged, H, {ragged, H, h0, h}, z, of_gates, of_candidate, h, gates, h_last, memory.units};
  run_recurrence(*shape, *threads, kGates * H * H, of_candidate.panels(), pass);
}

void rtf_gru_backward_f32(const RtfGruShape* shape, const float* r_gates, const float* r_candidate, const float* h0,
                          const float* h, const float* gates, const float* dh, const float* dh_last, float* dz,
                          float* reset_h, float* dh0, float* scratch, const RtfThreads* threads) {
  using namespace rtf;
  const int64_t H = shape->units;
  const Scratch memory(*shape, scratch);
  const Matrix of_gates = transposed_matrix(r_gates, 2 * H, H, memory.gates, *threads);
  const Matrix of_candidate = transposed_matrix(r_candidate, H, H, memory.candidate, *threads);
  const Ragged ragged = ragged_of(*shape);
  const Backward pass{ragged, H, {ragged, H, h0, h}, gates, dh, dh_last, of_gates, of_candidate, dz, reset_h, dh0};
  run_recurrence(*shape, *threads, kGates * H * H, of_candidate.panels(), pass);
}
}
