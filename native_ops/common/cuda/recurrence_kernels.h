// The kernels of any recurrence R (LSTM, GRU; forward, backward). One launch runs all steps, with one barrier between
// the blocks of a group per product. Weights stay on the chip, or, if there are too many units for that, are read from
// L2.
#pragma once

#include "recurrence_block.h"

namespace rtf {
namespace recurrence {

constexpr int kStreamingBlocks = 2;  // blocks per multiprocessor: doubles the loads in flight

template <class R>
__global__ void __launch_bounds__(kThreads)
    start_sequences(const __grid_constant__ typename R::Arrays arrays, const __grid_constant__ Layout layout,
                    const __grid_constant__ Buffers buffers, const __grid_constant__ RowTable table) {
  using Element = typename R::Math::Element;
  const int unit = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x), i = static_cast<int>(blockIdx.x);
  if (unit >= layout.units) return;
  const int group = i % layout.groups, row = i / layout.groups;
  const int64_t at = static_cast<int64_t>(group) * layout.group_rows + row;
  Element* x = reinterpret_cast<Element*>(buffers.x[0] + at * layout.chunks[0] * kChunkBytes);
  const int2 sequence = table.rows[i];
  buffers.state[at * layout.state_units + unit] = R::start(arrays, place_of(layout, sequence, unit, 0), sequence.y, x);
}

// x [T, B, width]: zeroes frames after the end of a sequence.
template <class Element>
__global__ void zero_padding(Element* x, int64_t width, int64_t frames, int64_t batch,
                             const __grid_constant__ RowTable table) {
  const int2 row = table.rows[blockIdx.x];
  for (int64_t t = row.y + static_cast<int64_t>(blockIdx.y); t < frames; t += gridDim.y)
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) put(&x[(t * batch + row.x) * width + i], 0.0f);
}

// All steps; grid: groups x tiles, cooperative. Shared memory: see Block::carve, then the weights of each stage.
template <class R>
__global__ void __launch_bounds__(kThreads, 1)
    all_steps(const __grid_constant__ typename R::Arrays arrays, const __grid_constant__ Layout layout,
              const __grid_constant__ Buffers buffers, const __grid_constant__ RowTable table) {
  using First = typename R::First;
  using Second = typename R::Second;
  const int group = static_cast<int>(blockIdx.x) / layout.tiles, tile = static_cast<int>(blockIdx.x) % layout.tiles;
  Block<R> block(arrays, layout, buffers, group, tile);
  int4* shared = reinterpret_cast<int4*>(block.carve(dynamic_shared<unsigned char>(), true));
  block.read_rows(table);
  if (block.n_rows() == 0) return;
  block.own_states();
  Product<typename R::Math, First::kTiles, First::kHeld> first;
  Product<typename R::Math, Second::kTiles, Second::kHeld> second;
  const int first_vectors = layout.chunks[0] * First::kTiles * kFragmentVectors;
  first.hold(buffers.packed[0] + static_cast<int64_t>(tile) * first_vectors, layout.chunks[0],
             layout.chunks[0] * kChunkBytes / 16, layout.n_shared[0], shared);
  if constexpr (R::kStages == 2) {
    const int second_vectors = layout.chunks[1] * Second::kTiles * kFragmentVectors;
    second.hold(buffers.packed[1] + static_cast<int64_t>(tile) * second_vectors, layout.chunks[1],
                layout.chunks[1] * kChunkBytes / 16, layout.n_shared[1],
                shared + layout.n_shared[0] * kWarps * First::kTiles * kFragmentVectors);
  }
  SplitBarrier barrier(buffers.counters + group * kCounterDistance, layout.tiles);
  const auto wait = [&] { barrier.wait(); };
  const auto arrive = [&] { barrier.arrive(); };
  const int steps = block.length(0);
  int active = 0;
  for (int i = 0; i < steps; ++i) {
    const int step = R::kBackward ? steps - 1 - i : i;
    active = block.active_in(step, i == 0 && !R::kBackward ? block.n_rows() : active);
    block.template run<First>(first, 0, step, active, wait, arrive);
    if constexpr (R::kStages == 2) block.template run<Second>(second, 1, step, active, wait, arrive);
  }
  if constexpr (R::kBackward)
    if (steps > 0) block.template run<typename R::Finish>(first, 0, -1, active, wait, arrive);
}

// One stage of a step for all tiles of this block.
template <class Stage, int kStage, class R>
__device__ __forceinline__ void run_tiles(Block<R>& block, const Layout& layout, const Buffers& buffers, int step,
                                          int active, SplitBarrier* barrier) {
  const int blocks = static_cast<int>(gridDim.x), vectors = layout.chunks[kStage] * Stage::kTiles * kFragmentVectors;
  for (int tile = static_cast<int>(blockIdx.x); tile < layout.tiles; tile += blocks) {
    Product<typename R::Math, Stage::kTiles, 0> product;
    product.hold(buffers.packed[kStage] + static_cast<int64_t>(tile) * vectors, layout.chunks[kStage],
                 layout.chunks[kStage] * kChunkBytes / 16, 0, nullptr);
    block.take_tile(tile);
    const auto wait = [&] {
      if (tile < blocks)
        barrier->wait();
      else
        __syncthreads();  // the partial sums of the previous tile have been read
    };
    const auto arrive = [&] {
      if (tile + blocks >= layout.tiles) barrier->arrive();
    };
    block.template run<Stage>(product, kStage, step, active, wait, arrive);
  }
}

// The same with more tiles than multiprocessors, in a single group: a block has several tiles, their states are in
// global memory, and all weights are read from L2 in each step. Grid: any number of blocks up to the number of tiles,
// cooperative.
template <class R>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    all_steps_streaming(const __grid_constant__ typename R::Arrays arrays, const __grid_constant__ Layout layout,
                        const __grid_constant__ Buffers buffers, const __grid_constant__ RowTable table) {
  Block<R> block(arrays, layout, buffers, 0, 0);
  block.carve(dynamic_shared<unsigned char>(), false);
  block.read_rows(table);
  SplitBarrier barrier(buffers.counters, static_cast<int>(gridDim.x));
  const int steps = block.length(0);
  int active = 0;
  for (int i = 0; i < steps; ++i) {
    const int step = R::kBackward ? steps - 1 - i : i;
    active = block.active_in(step, i == 0 && !R::kBackward ? block.n_rows() : active);
    run_tiles<typename R::First, 0>(block, layout, buffers, step, active, &barrier);
    if constexpr (R::kStages == 2) run_tiles<typename R::Second, 1>(block, layout, buffers, step, active, &barrier);
  }
  if constexpr (R::kBackward)
    if (steps > 0) run_tiles<typename R::Finish, 0>(block, layout, buffers, -1, active, &barrier);
}

}  // namespace recurrence
}  // namespace rtf
