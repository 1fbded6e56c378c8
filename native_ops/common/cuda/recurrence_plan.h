// Host-side planning: how a recurrence is cut into blocks, and the memory that this takes.
#pragma once

#include <algorithm>

#include "../sequences.h"
#include "recurrence.h"
#include "recurrence_kernels.h"

namespace rtf {
namespace recurrence {

struct Plan {
  bool on_chip;  // one multiprocessor per tile of units, which keeps as many weights as fit
  Layout layout;
  int64_t launch_rows;  // maximum number of sequences per launch
  size_t shared_bytes;
  int64_t x_at[kMaxStages], state_at, packed_at[kMaxStages], bytes;  // size of the workspace; the counters come first
  int64_t cleared;                                                   // bytes at its start to be zeroed before a launch
  double cost;  // estimated cycles per step, without the cost common to all plans
};

inline int64_t rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Shared memory left for weights goes to the first stage, then to the second one.
template <class R, class Stage>
void plan_weights(Plan* plan, int stage, int64_t* free_bytes) {
  constexpr int64_t kChunk = int64_t{kWarps} * Stage::kTiles * kFragmentVectors * sizeof(int4);  // one per warp
  const int64_t left = std::max<int64_t>(0, (plan->layout.chunks[stage] + kWarps - 1) / kWarps - Stage::kHeld);
  const int64_t room = *free_bytes / kChunk / kRing * kRing;
  plan->layout.n_shared[stage] = static_cast<int>(std::min(rounded_up(left, kRing), room));
  *free_bytes -= plan->layout.n_shared[stage] * kChunk;
  plan->shared_bytes += static_cast<size_t>(plan->layout.n_shared[stage] * kChunk);
}

// Cycles of a stage: those of the tensor cores (4 per multiprocessor), and those to read x and the weights that are not
// kept from L2, at the 64 bytes per cycle of a multiprocessor or the 3600 that L2 delivers in total.
template <class R, class Stage>
double stage_cost(const Plan& plan, int stage, int64_t rows) {
  const Layout& layout = plan.layout;
  const double chunks = layout.chunks[stage], row_tiles = static_cast<double>((rows + 7) / 8);
  const double products = Stage::kTiles * chunks * 2 * row_tiles * R::Math::kCycles / 4;
  const double kept = kWarps * (Stage::kHeld + layout.n_shared[stage]);
  const double streamed = std::max(0.0, chunks - kept) * Stage::kTiles * kFragmentVectors * sizeof(int4);
  const double bytes = rows * chunks * kChunkBytes + streamed;
  const double reading = std::max(bytes / 64, bytes * layout.groups * layout.tiles / 3600);
  const double passes = static_cast<double>((rows + kPassRows - 1) / kPassRows);
  return products + reading + 300 * passes;
}

template <class R>
Plan plan_for_groups(const RtfSequences& shape, const DeviceFacts& facts, int64_t tiles, int64_t groups) {
  Plan plan{};
  Layout& layout = plan.layout;
  plan.on_chip = tiles * groups <= facts.multiprocessors;
  plan.launch_rows = std::min<int64_t>(shape.batch, kMaxRows);
  const int64_t rows = (plan.launch_rows + groups - 1) / groups;
  layout.batch = shape.batch;
  layout.units = static_cast<int>(shape.units);
  layout.reverse = shape.reverse;
  layout.groups = static_cast<int>(groups);
  layout.tiles = static_cast<int>(tiles);
  layout.group_rows = static_cast<int>(rounded_up(std::max<int64_t>(rows, 1), kPassRows));
  layout.state_units = static_cast<int>(rounded_up(shape.units, 4));
  constexpr int64_t kChunk = kChunkBytes / static_cast<int64_t>(sizeof(typename R::Math::Element));
  for (int stage = 0; stage < R::kStages; ++stage)
    layout.chunks[stage] = static_cast<int>((R::product_length(stage, shape.units) + kChunk - 1) / kChunk);
  plan.shared_bytes = layout.group_rows * sizeof(int2) + Block<R>::partial_floats() * sizeof(float);
  if (!plan.on_chip) return plan;
  plan.shared_bytes += static_cast<size_t>(layout.group_rows) * R::kUnits * sizeof(float);
  int64_t free_bytes = facts.shared_per_block - static_cast<int64_t>(plan.shared_bytes);
  plan_weights<R, typename R::First>(&plan, 0, &free_bytes);
  if (R::kStages == 2) plan_weights<R, typename R::Second>(&plan, 1, &free_bytes);
  plan.cost = stage_cost<R, typename R::First>(plan, 0, rows);
  if (R::kStages == 2) plan.cost += stage_cost<R, typename R::Second>(plan, 1, rows);
  return plan;
}

// Offsets in the workspace, multiples of 256.
template <class R>
void place_buffers(Plan* plan) {
  const Layout& layout = plan->layout;
  int64_t at = rounded_up(int64_t{layout.groups} * kCounterDistance * sizeof(unsigned), 256);
  for (int stage = 0; stage < R::kStages; ++stage) {
    plan->x_at[stage] = at;
    at += rounded_up(2 * int64_t{layout.groups} * layout.group_rows * layout.chunks[stage] * kChunkBytes, 256);
  }
  plan->cleared = plan->state_at = at;
  at += rounded_up(int64_t{layout.groups} * layout.group_rows * layout.state_units * sizeof(float), 256);
  const int row_tiles[kMaxStages] = {R::First::kTiles, R::Second::kTiles};
  for (int stage = 0; stage < R::kStages; ++stage) {
    plan->packed_at[stage] = at;
    at += rounded_up(int64_t{layout.tiles} * layout.chunks[stage] * row_tiles[stage] * kFragmentVectors * sizeof(int4),
                     256);
  }
  plan->bytes = at;
}

// The cheapest number of groups; 1 if there are more tiles than multiprocessors.
template <class R>
Plan make_plan(const RtfSequences& shape, const DeviceFacts& facts) {
  const int64_t tiles = (shape.units + R::kUnits - 1) / R::kUnits;
  const int64_t rows = std::min<int64_t>(shape.batch, kMaxRows);
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(facts.multiprocessors / tiles, (rows + 7) / 8));
  Plan best = plan_for_groups<R>(shape, facts, tiles, 1);
  for (int64_t groups = 2; groups <= most; ++groups) {
    const Plan plan = plan_for_groups<R>(shape, facts, tiles, groups);
    if (plan.cost < best.cost) best = plan;
  }
  place_buffers<R>(&best);
  return best;
}

// The text of an error in the arguments of a call, or null.
inline const char* check(const RtfSequences& shape) {
  if (shape.units < 1 || shape.units > 65536) return "the number of units has to be 1 .. 65536";
  if (shape.frames < 0 || shape.frames > 0x7fffffff) return "the number of frames has to be 0 .. 2^31 - 1";
  if (shape.batch < 0 || shape.batch > 0x7fffffff) return "the number of sequences has to be 0 .. 2^31 - 1";
  for (int64_t b = 0; shape.lengths != nullptr && b < shape.batch; ++b)
    if (shape.lengths[b] < 0 || shape.lengths[b] > shape.frames)
      return "a sequence is longer than the array, or of negative length";
  return nullptr;
}

}  // namespace recurrence
}  // namespace rtf
