// The layout of sequences, units and arrays of a recurrence, for its kernels and for the host that launches them.
//
// Sequences are sorted by length and dealt out to groups in turn, so that those still running are always the first of
// each group: a ragged batch shrinks instead of being masked. Groups are independent of each other. The units of a
// group are cut into tiles, one block each, with all gates of a unit in the same block.
#pragma once

#include "recurrence_product.h"

namespace rtf {
namespace recurrence {

constexpr int kMaxStages = 2;
constexpr int kMaxRows = 256;         // sequences per launch: their table is a kernel parameter
constexpr int kCounterDistance = 32;  // distance between the barrier counters of two groups, in unsigned: a cache line

// The sequences of a launch, longest first. Passed by value, which avoids a copy that the host would have to wait for.
struct RowTable {
  int count;
  int2 rows[kMaxRows];  // index in the batch, length
};

struct Layout {
  int64_t batch;
  int units, reverse;
  int groups, tiles;       // sequence i is row i / groups of group i % groups
  int group_rows;          // rows of x and states per group: whole passes
  int state_units;         // row length of the states
  int chunks[kMaxStages];  // of a row of x, for the product of each stage
  int n_shared[kMaxStages];
};

// In the workspace. x of a stage: [2, groups, group_rows, chunks * 64 bytes], the operand of its product,
// double-buffered.
struct Buffers {
  unsigned* counters;
  unsigned char* x[kMaxStages];
  float* state;  // [groups, group_rows, state_units]
  int4* packed[kMaxStages];
};

// One unit of one sequence in one step.
struct Place {
  int64_t frame, before;  // t * B + b of this step, and of the previous one (unless this is the first)
  int64_t sequence;
  int units, unit;
  bool first, last;  // step of the sequence

  __device__ int64_t state() const { return sequence * units + unit; }
  __device__ int64_t at(int64_t frame_of) const { return frame_of * units + unit; }
  // Offset of the gate in an array [T, B, gates * units].
  __device__ int64_t gate(int gates, int index) const { return (frame * gates + index) * units + unit; }
};

__device__ __forceinline__ Place place_of(const Layout& layout, int2 row, int unit, int step) {
  Place place;
  const int64_t frame = layout.reverse ? row.y - 1 - step : step;
  place.frame = frame * layout.batch + row.x;
  place.before = layout.reverse ? place.frame + layout.batch : place.frame - layout.batch;
  place.sequence = row.x;
  place.units = layout.units;
  place.unit = unit;
  place.first = step == 0;
  place.last = step == row.y - 1;
  return place;
}

__device__ __forceinline__ int64_t x_bytes(const Layout& layout, int stage) {
  return static_cast<int64_t>(layout.group_rows) * layout.chunks[stage] * kChunkBytes;
}

// The x of a stage and group with this parity.
__device__ __forceinline__ unsigned char* x_of(const Layout& layout, const Buffers& buffers, int stage, int group,
                                               int parity) {
  return buffers.x[stage] + ((parity & 1) * layout.groups + group) * x_bytes(layout, stage);
}

__device__ __forceinline__ int rows_of_group(const Layout& layout, int count, int group) {
  return (count - group + layout.groups - 1) / layout.groups;
}

}  // namespace recurrence
}  // namespace rtf
