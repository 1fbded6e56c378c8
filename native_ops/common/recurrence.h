// Scheduling of a recurrence over a ragged batch: which thread does what.
//
// A large batch is divided over the threads by sequences (common/ragged.h); for a small one, by units (common/team.h).
// The computation of each number does not depend on the division, so results are bit-identical.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ragged.h"
#include "sequences.h"
#include "team.h"
#include "weights.h"

namespace rtf {

inline Ragged ragged_of(const RtfSequences& shape) {
  return Ragged{shape.frames, shape.batch, shape.lengths, shape.reverse != 0};
}

// Some sequences of a batch, longest first, and how many of them are still running at each step.
class Rows {
 public:
  // first_block: where they begin in the tiles of the batch.
  Rows(const Ragged& ragged, std::vector<int32_t> rows, int64_t first_block = 0)
      : rows_(std::move(rows)), first_block_(first_block) {
    const int64_t longest = rows_.empty() ? 0 : ragged.length(rows_[0]);
    active_.resize(longest + 1);
    int64_t active = rows_.size();
    for (int64_t step = 0; step <= longest; ++step) {
      while (active > 0 && ragged.length(rows_[active - 1]) <= step) --active;
      active_[step] = active;
    }
  }

  int32_t operator[](int64_t row) const { return rows_[row]; }
  const std::vector<int32_t>& all() const { return rows_; }
  int64_t frames() const { return static_cast<int64_t>(active_.size()) - 1; }

  // Their part of the tiles of the batch.
  FactorRows of(const FactorRows& all) const { return all.from_block(first_block_); }

  // The rows 0 .. active(step) - 1 have a step of that number. Step -1 precedes the first one.
  int64_t active(int64_t step) const { return step < 0 ? rows_.size() : active_[step]; }

 private:
  std::vector<int32_t> rows_;
  std::vector<int64_t> active_;
  int64_t first_block_;
};

// The state before each step of each sequence, or one of its parts: the initial one [B, H], then those of all frames.
struct States {
  Ragged ragged;
  int64_t units;
  const float *initial, *all;

  const float* before(int32_t b, int64_t step) const {
    return step == 0 ? initial + b * units : all + ragged.at(b, step - 1) * units;
  }
};

// The scratch memory of the passes of a cell with kGates gates and one recurrent product per step: packed weights, and
// the rows of the product of even and of odd steps.
template <int kGates>
struct ForwardMemory {
  float* weights;       // [units, kGates * units]
  FactorRows tiles[2];  // h_{t-1}

  ForwardMemory(Arena& arena, const Recurrence& shape)
      : weights(Weights<kGates>::take(arena, shape, shape.units, kGates * shape.units)),
        tiles{take_rows(arena, shape, shape.units), take_rows(arena, shape, shape.units)} {}
};

template <int kGates>
struct BackwardMemory {
  float* weights;       // [kGates * units, units]
  FactorRows tiles[2];  // dz

  BackwardMemory(Arena& arena, const Recurrence& shape)
      : weights(TransposedWeights::take(arena, shape, kGates * shape.units, shape.units, kGates)),
        tiles{take_rows(arena, shape, kGates * shape.units, kGates),
              take_rows(arena, shape, kGates * shape.units, kGates)} {}
};

// What to allocate for either pass.
template <typename Forward, typename Backward, typename Shape>
int64_t scratch_of_passes(const Shape& shape) {
  return scratch_of(std::max(size_of<Forward>(shape), size_of<Backward>(shape)));
}

// A team pays off if there are fewer rows per thread than the product keeps in registers or tiles (rounded ones: than
// are packed together), and, with vector arithmetic, if the weights exceed the cache of a core ...
constexpr int64_t kRowsOfTeam = kMaxRows, kTileRowsOfTeam = 2 * kTileRows, kRoundedRowsOfTeam = kTileRows;
constexpr int64_t kBytesOfCore = 2'000'000;
// ... and if the whole recurrence is long enough that another thread can start in time (multiply-adds of all steps) ...
constexpr int64_t kWorkOfTeam = 10'000'000;
// ... and each step is long enough for a handover (multiply-adds per step and thread).
constexpr int64_t kWorkOfMember = 20'000;

// Number of threads in a team; 1: no team. See run_recurrence.
inline int64_t team_size(const Recurrence& shape, const RtfThreads& threads, int64_t n_weights, int64_t least_panels) {
  const bool tiled = by_tiles(shape);
  const int64_t step = shape.batch * n_weights;
  const int64_t available = std::min<int64_t>(Team::kMaxSize, threads.n_threads / Running::count());
  if (available < 2 || shape.frames * step < kWorkOfTeam) return 1;
  const int64_t size = std::max<int64_t>(1, std::min({available, step / kWorkOfMember, least_panels}));
  const int64_t rows_of_team = tiled ? kTileRowsOfTeam : shape.rounded ? kRoundedRowsOfTeam : kRowsOfTeam;
  const bool few_rows = shape.batch < rows_of_team * available;
  const int64_t bytes = n_weights * static_cast<int64_t>(shape.rounded ? sizeof(Bfloat16) : sizeof(float));
  const bool large = !tiled && bytes > kBytesOfCore && least_panels % size == 0;
  return few_rows || large ? size : 1;
}

// Runs a pass, which has
//   begin(rows), end(rows): before and after all steps of some sequences,
//   n_steps(rows), n_panels(step), run(rows, step, first, last): the panels first .. last - 1 of a step; each needs all
//   panels of the previous step.
// n_weights: recurrent weights, i.e. the multiply-adds per frame; least_panels: the minimum of n_panels over the steps.
template <typename Pass>
void run_recurrence(const Recurrence& shape, const RtfThreads& threads, int64_t n_weights, int64_t least_panels,
                    const Pass& pass) {
  const Running running;
  const Ragged ragged = ragged_of(shape);
  const int64_t size = team_size(shape, threads, n_weights, least_panels);
  const Shares shares(ragged, size > 1 ? 1 : n_shares(shape, threads));
  const auto run_part = [&](const Rows& rows, int64_t step, int64_t member, int64_t n_members) {
    const int64_t n = pass.n_panels(step);
    pass.run(rows, step, member * n / n_members, (member + 1) * n / n_members);
  };
  if (size > 1) {
    const Rows rows(ragged, shares.share(0));
    Team team(size, threads.n_threads);
    pass.begin(rows);
    run_tasks(threads, size, [&](int64_t) {
      team.join(pass.n_steps(rows), [&](int64_t step, int64_t member, int64_t n) { run_part(rows, step, member, n); });
    });
    return pass.end(rows);
  }
  run_tasks(threads, shares.count(), [&](int64_t index) {
    const Rows rows(ragged, shares.share(index), index * blocks_of_share(shape, shares.count()));
    pass.begin(rows);
    for (int64_t step = 0; step < pass.n_steps(rows); ++step) run_part(rows, step, 0, 1);
    pass.end(rows);
  });
}

// One step of a backward pass whose gate inputs need one product: the panels first .. last - 1. The passes of LSTM and
// sLSTM share it. A pass has, besides ragged, units, weights, tiles and dz,
//   kDepth: gates per unit in dz; dh_end(): the gradient of the last output [B, H]; dh_begin(): that of the initial
//   one, cell<kWhole>(b, step, u, lanes, dh, row, tiles): from the gradient of an output to those of the gate inputs.
template <typename Pass>
inline __attribute__((always_inline)) void run_backward_step(const Pass& pass, const Rows& rows, int64_t index,
                                                             int64_t first, int64_t last) {
  const int64_t step = rows.frames() - 1 - index, n_before = rows.active(step + 1), units = pass.units;
  const FactorRows from = rows.of(pass.tiles[(step + 1) & 1]), to = rows.of(pass.tiles[step & 1]);
  const auto finish = [&](int64_t panel, auto width, int64_t row, const Vec* sums) __attribute__((always_inline)) {
    const auto vector = [&](int64_t u, auto whole, int lanes, Vec sum) __attribute__((always_inline)) {
      constexpr bool kWhole = decltype(whole)::value;
      if (step < 0)
        store_n<kWhole>(pass.dh_begin() + rows[row] * units + u, sum, lanes);
      else
        pass.template cell<kWhole>(rows[row], step, u, lanes, sum, row, to);
    };
    for_units<decltype(width)::value>(panel * width * kLanes, units, sums, vector);
  };
  pass.weights.multiply(
      [&](int64_t row) { return pass.dz + pass.ragged.at(rows[row], step + 1) * Pass::kDepth * units; }, from, n_before,
      first, last, index % 2, finish);
  pass.weights.for_panels(first, last, [&](int64_t panel, auto width) {
    for (int64_t row = n_before; row < rows.active(step); ++row) {  // rows whose last step it is
      Vec from_end[decltype(width)::value];
      load_units<decltype(width)::value>(pass.dh_end() + rows[row] * units, panel * width * kLanes, units, from_end);
      finish(panel, width, row, from_end);
    }
  });
}

}  // namespace rtf
