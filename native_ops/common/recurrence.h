// How a recurrence runs over a ragged batch: which thread takes what.
//
// A large batch is dealt out to the threads by sequences (common/ragged.h). Of a small one, each thread takes some of the units
// (common/team.h). What is computed for a number does not depend on it, so results are the same bit for bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "packed_gemm.h"
#include "ragged.h"
#include "sequences.h"
#include "team.h"

namespace rtf {

inline Ragged ragged_of(const RtfSequences& shape) {
  return Ragged{shape.frames, shape.batch, shape.lengths, shape.reverse != 0};
}

// Some sequences of a batch, the longest first, and how many of them still run at each step.
class Rows {
 public:
  Rows(const Ragged& ragged, std::vector<int32_t> rows) : rows_(std::move(rows)) {
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

  // The rows 0 .. active(step) - 1 have a step of that number. Step -1 is before the first one.
  int64_t active(int64_t step) const { return step < 0 ? rows_.size() : active_[step]; }

 private:
  std::vector<int32_t> rows_;
  std::vector<int64_t> active_;
};

// A team pays with fewer rows for each thread than the product has in its registers, and where the weights are too many for the
// cache of a core ...
constexpr int64_t kRowsOfTeam = kMaxRows;
constexpr int64_t kWeightsOfCore = 500'000;
// ... if all is not over before another thread has begun, in multiply-adds of all steps ...
constexpr int64_t kWorkOfTeam = 10'000'000;
// ... but not even a step is worth a word to another thread below so many.
constexpr int64_t kWorkOfMember = 20'000;

// Of how many threads a team should be; 1: none. See run_recurrence.
inline int64_t team_size(const RtfSequences& shape, const RtfThreads& threads, int64_t n_weights, int64_t least_panels) {
  const int64_t step = shape.batch * n_weights;
  const int64_t available = std::min<int64_t>(Team::kMaxSize, threads.n_threads / Running::count());
  if (available < 2 || shape.frames * step < kWorkOfTeam) return 1;
  const int64_t size = std::max<int64_t>(1, std::min({available, step / kWorkOfMember, least_panels}));
  const bool few_rows = shape.batch < kRowsOfTeam * available;
  const bool large = n_weights > kWeightsOfCore && least_panels % size == 0;
  return few_rows || large ? size : 1;
}

// Runs a pass, which has
//   begin(rows), end(rows): before and after all steps of some sequences,
//   n_steps(rows), n_panels(step), run(rows, step, first, last): the panels first .. last - 1 of a step; each needs all panels
//   of the step before.
// n_weights: recurrent weights, which are the multiply-adds of a frame; least_panels: n_panels of the step that has least.
template <typename Pass>
void run_recurrence(const RtfSequences& shape, const RtfThreads& threads, int64_t n_weights, int64_t least_panels,
                    const Pass& pass) {
  const Running running;
  const Ragged ragged = ragged_of(shape);
  const int64_t size = team_size(shape, threads, n_weights, least_panels);
  const Shares shares(ragged, size > 1 ? 1 : threads.n_threads);
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
    const Rows rows(ragged, shares.share(index));
    pass.begin(rows);
    for (int64_t step = 0; step < pass.n_steps(rows); ++step) run_part(rows, step, 0, 1);
    pass.end(rows);
  });
}

// Recurrent weights as the product reads them: packed into scratch, or as they are. With so few rows in all, as in a decoder that
// calls the op for each frame, reading the weights once as they are is faster.
inline Matrix recurrent_matrix(const RtfSequences& shape, const float* w, int64_t depth, int64_t columns, int parts,
                               float* packed, const RtfThreads& threads) {
  constexpr int64_t kRowsWithoutPacking = 4;
  if (shape.frames * shape.batch <= kRowsWithoutPacking && has_whole_panels(columns))
    return plain_matrix(w, depth, columns, parts);
  run_ranges(threads, n_panels(columns, parts),
             [&](int64_t first, int64_t last) { pack(w, depth, columns, first, last, packed, parts); });
  return packed_matrix(packed, depth, columns, parts);
}

// The transposed of w [columns, depth], for the way back.
inline Matrix transposed_matrix(const float* w, int64_t depth, int64_t columns, float* packed, const RtfThreads& threads) {
  run_ranges(threads, n_panels(columns),
             [&](int64_t first, int64_t last) { pack_transposed(w, depth, columns, first, last, packed); });
  return packed_matrix(packed, depth, columns);
}

}  // namespace rtf
