// One block of a recurrence R: what it does in a step, and how it waits for the others.
//
// R has: Math, kUnits (per tile), kStages, kBackward, kStreams (whether it supports weights streamed from L2); Arrays
// (of the caller); start(arrays, place, length, x row), which returns the state of a sequence before its first step and
// writes what belongs to no step; and for each of its stages (First, Second; Finish, after the last step of backward) a
// struct with
//   kRows: rows of its product per unit;  kTiles: 16 rows each;  kHeld: chunks of weights per warp in registers
//   load(arrays, place, &input)          read the caller's arrays; early, without results of other blocks of this step
//   compute(sums, input, place, &state)  compute the step's results from the sums of the product
//   send(output, units, unit, x rows)    write what the products of the other blocks read next
//   store(arrays, output, place)         write to the caller's arrays
#pragma once

#include "recurrence_layout.h"

namespace rtf {
namespace recurrence {

// Placeholder for a stage that a recurrence does not have.
struct NoStage {
  static constexpr int kRows = 1, kTiles = 1, kHeld = 0;
  struct Input {};
};

// One block: its part of the units, for the sequences of its group.
template <class R>
class Block {
 public:
  using Element = typename R::Math::Element;
  using Arrays = typename R::Arrays;

  __device__ Block(const Arrays& arrays, const Layout& layout, const Buffers& buffers, int group, int tile)
      : arrays_(arrays), layout_(layout), buffers_(buffers), group_(group) {
    take_tile(tile);
    row_ = static_cast<int>(threadIdx.x) / R::kUnits;
  }

  __device__ void take_tile(int tile) { unit_ = tile * R::kUnits + static_cast<int>(threadIdx.x) % R::kUnits; }

  // Shared memory: rows, partial sums and, with own_state, own_states(). Returns the address after them.
  __device__ unsigned char* carve(unsigned char* shared, bool own_state) {
    rows_ = reinterpret_cast<int2*>(shared);
    partial_ = reinterpret_cast<float*>(rows_ + layout_.group_rows);
    float* after = partial_ + partial_floats();
    state_ = buffers_.state + static_cast<int64_t>(group_) * layout_.group_rows * layout_.state_units;
    state_row_ = layout_.state_units;
    first_unit_ = 0;
    if (!own_state) return reinterpret_cast<unsigned char*>(after);
    own_state_ = after;
    return reinterpret_cast<unsigned char*>(after + layout_.group_rows * R::kUnits);
  }

  static constexpr int kMaxTiles = R::First::kTiles > R::Second::kTiles ? R::First::kTiles : R::Second::kTiles;
  static constexpr int kPartial = kWarps * kPassRows * (16 * kMaxTiles + 4);  // floats per pass
  static __host__ __device__ int partial_floats() { return 2 * kPartial; }

  __device__ void read_rows(const RowTable& table) {
    n_rows_ = rows_of_group(layout_, table.count, group_);
    for (int i = static_cast<int>(threadIdx.x); i < n_rows_; i += kThreads)
      rows_[i] = table.rows[i * layout_.groups + group_];
    __syncthreads();
  }

  // The states of one tile move to shared memory.
  __device__ void own_states() {
    const int column = static_cast<int>(threadIdx.x) % R::kUnits;
    if (unit_ < layout_.units && row_ < kPassRows)
      for (int i = row_; i < n_rows_; i += kPassRows) own_state_[i * R::kUnits + column] = *state_of(i);
    state_ = own_state_;
    state_row_ = R::kUnits;
    first_unit_ = unit_ - column;
  }

  __device__ int n_rows() const { return n_rows_; }
  __device__ int length(int row) const { return rows_[row].y; }

  // How many sequences run in a step, starting from a nearby guess.
  __device__ int active_in(int step, int active) const {
    while (active > 0 && rows_[active - 1].y <= step) --active;
    while (active < n_rows_ && rows_[active].y > step) ++active;
    return active;
  }

  // One stage of a step. wait() returns when the data sent by other blocks has arrived; arrive() signals that this
  // block has sent its own.
  template <class Stage, class P, class Wait, class Arrive>
  __device__ __forceinline__ void run(const P& product, int stage, int step, int active, const Wait& wait,
                                      const Arrive& arrive) {
    const int passes = (active + kPassRows - 1) / kPassRows;
    typename Stage::Input input{};
    typename Stage::Output output{};
    if (is_mine(0, active)) Stage::load(arrays_, place(0, step), &input);
    wait();
    const void* x = x_of(layout_, buffers_, stage, group_, stage == 0 && R::kBackward ? step + 1 : step);
    product.begin(x_ring_, rows_of_pass(product, x, 0, active));
    for (int pass = 0; pass < passes; ++pass) {
      output = {};  // stored already: otherwise it takes registers during the product
      if (pass > 0 && is_mine(pass, active)) Stage::load(arrays_, place(pass, step), &input);
      float* partial = partial_ + pass % 2 * kPartial;
      multiply(product, x, pass, active, partial);
      __syncthreads();
      if (!is_mine(pass, active)) continue;
      float sums[Stage::kRows];
      add_up<P::kPartialRow>(partial, sums);
      const Place at = place(pass, step);
      output = Stage::compute(sums, input, at, state_of(row_in_group(pass)));
      send<Stage>(output, step, row_in_group(pass));
      if (pass + 1 < passes) Stage::store(arrays_, output, at);
    }
    arrive();
    if (is_mine(passes - 1, active)) Stage::store(arrays_, output, place(passes - 1, step));
  }

 private:
  __device__ float* state_of(int row) const {
    return state_ + static_cast<int64_t>(row) * state_row_ + unit_ - first_unit_;
  }

  __device__ int row_in_group(int pass) const { return pass * kPassRows + row_; }

  __device__ bool is_mine(int pass, int active) const {
    return row_ < kPassRows && unit_ < layout_.units && pass >= 0 && row_in_group(pass) < active;
  }

  __device__ Place place(int pass, int step) const { return place_of(layout_, rows_[row_in_group(pass)], unit_, step); }

  template <class P>
  __device__ PassRows rows_of_pass(const P& product, const void* x, int pass, int active) const {
    const int left = active - pass * kPassRows;
    return product.rows(x, pass * kPassRows, left <= 0 ? 0 : min(kColumns, (left + 7) / 8));
  }

  template <class P>
  __device__ __forceinline__ void multiply(const P& product, const void* x, int pass, int active, float* partial) {
    typename P::Sums sums;
    const PassRows here = rows_of_pass(product, x, pass, active);
    product.pass(sums, x_ring_, here, rows_of_pass(product, x, pass + 1, active));
    product.share(sums, here.columns, partial);
  }

  // Sum over the warps, for the rows of this thread's unit.
  template <int kPartialRow, int kRows>
  __device__ __forceinline__ void add_up(const float* partial, float (&sums)[kRows]) const {
    const float* mine = partial + row_ * kPartialRow + static_cast<int>(threadIdx.x) % R::kUnits * kRows;
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      const float* from = mine + warp * kPassRows * kPartialRow;
      if constexpr (kRows == 4) {
        const float4 part = *reinterpret_cast<const float4*>(from);
        sums[0] += part.x, sums[1] += part.y, sums[2] += part.z, sums[3] += part.w;
      } else {
#pragma unroll
        for (int r = 0; r < kRows; ++r) sums[r] += from[r];
      }
    }
  }

  // Forward: read by First of the next step; backward: by First of the previous step.
  template <class Stage>
  __device__ __forceinline__ void send(const typename Stage::Output& output, int step, int row) const {
    Element* x[kMaxStages];
#pragma unroll
    for (int stage = 0; stage < R::kStages; ++stage) {
      unsigned char* all = x_of(layout_, buffers_, stage, group_, stage == 0 && !R::kBackward ? step + 1 : step);
      x[stage] = reinterpret_cast<Element*>(all + static_cast<int64_t>(row) * layout_.chunks[stage] * kChunkBytes);
    }
    Stage::send(output, layout_.units, unit_, x);
  }

  const Arrays& arrays_;
  const Layout& layout_;
  const Buffers& buffers_;
  int group_, unit_, row_, n_rows_, state_row_, first_unit_;
  Ring x_ring_;
  int2* rows_;
  float *partial_, *state_, *own_state_;
};

// The barrier between the blocks of a group, split into two halves; work that no other block waits for goes between
// them.
class SplitBarrier {
 public:
  __device__ SplitBarrier(unsigned* counter, int blocks)
      : counter_(counter), blocks_(static_cast<unsigned>(blocks)), awaited_(0) {}

  __device__ __forceinline__ void arrive() {
    __syncthreads();
    awaited_ += blocks_;
    if (threadIdx.x == 0) add_release(counter_, 1u);
  }

  // Waits until all blocks have arrived as often as this one.
  __device__ __forceinline__ void wait() const {
    if (threadIdx.x == 0)
      while (!has_reached(load_acquire(counter_), awaited_)) spin_pause();
    __syncthreads();
  }

 private:
  unsigned* counter_;
  unsigned blocks_, awaited_;
};

}  // namespace recurrence
}  // namespace rtf
