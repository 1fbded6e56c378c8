// What both passes of the MDLSTM on a GPU share: the loop over the diagonals of a team, and their products.
//
// A diagonal is cut into tiles of 8 or 16 units x 4 P pixels; a thread has one or two units of P pixels with all
// columns of the product. If there are fewer tiles than warps, several warps share a tile: each multiplies some of the
// rows, then their sums are combined in shared memory and each computes the cells of some pixels. Inputs are prefetched
// before the block waits for others. Lanes are assigned so that each half of a warp reads 8 weights, or the rows of 2
// pixels, and lanes next to or two apart from each other read the same address: then shared memory serves 16 lanes at
// once.
#pragma once

#include "../common/cuda/mma.h"
#include "cuda_layout.h"

namespace rtf {
namespace mdlstm {

// The arguments of a kernel.
template <class Io>
struct Call {
  Sizes sizes;
  char* workspace;
  Io io[RTF_MDLSTM_CUDA_DIRECTIONS];
};

// A pixel of the current diagonal.
struct Pixel {
  int at;        // in [B, Y, X]
  int slot;      // of the row before its own, in its group
  int up, left;  // the previous pixels in [B, Y, X]; -1: outside the image
};

// The states of two diagonals, double-buffered.
struct Ring {
  float* data;
  int64_t side;  // 0: there is only one buffer
  int stride;

  __device__ __forceinline__ float* at(int diagonal, int slot) const {
    return data + ((diagonal & 1) * side + int64_t{slot} * stride);
  }
};

// The pixels and units of a block, and the offsets of its data.
struct Block {
  int direction, first_unit, unit_tiles;
  float* sums;
  const int4* images;
  int n_images, n_diagonals;
  Pixel* pixels;  // of one diagonal; followed by room for those of the next one
  const float4* weights;
  Ring shared;  // the states of the team
  Ring before;  // the states that the product reads: of the previous diagonal
  Ring cells;   // what only the block itself needs
  unsigned* arrived;
};

__device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }
__device__ __forceinline__ int threads() { return static_cast<int>(blockDim.x); }

// Pixels of a diagonal of an image {index, height, width, slot}; their first row.
__device__ __forceinline__ int first_row(const int4& image, int diagonal) { return max(0, diagonal - image.z + 1); }
__device__ __forceinline__ int count_pixels(const int4& image, int diagonal) {
  return max(0, min(diagonal, image.y - 1) - first_row(image, diagonal) + 1);
}

// Lists the pixels of a diagonal, image by image and row by row. Called by all threads; returns their number.
template <class Io>
__device__ int list_pixels(const Sizes& sizes, const Io& io, const Block& block, int diagonal, Pixel* pixels) {
  int total = 0;
  for (int e = 0; e < block.n_images; ++e) total += count_pixels(block.images[e], diagonal);
  const int up = io.flip_rows ? sizes.columns : -sizes.columns, left = io.flip_columns ? 1 : -1;
  for (int p = thread(); p < total; p += threads()) {
    int e = 0, rest = p;
    for (int n = 0; rest >= (n = count_pixels(block.images[e], diagonal)); ++e) rest -= n;
    const int4 image = block.images[e];
    const int i = first_row(image, diagonal) + rest, j = diagonal - i;
    const int y = io.flip_rows ? image.y - 1 - i : i, x = io.flip_columns ? image.z - 1 - j : j;
    const int at = (image.x * sizes.rows + y) * sizes.columns + x;
    pixels[p] = Pixel{at, image.w + i, i > 0 ? at + up : -1, j > 0 ? at + left : -1};
  }
  return total;
}

// The units of a slice in the layout of the product: [tile][row of both previous states][sum][unit % 8], four rows
// together, padded with 0.
template <class Pass>
__device__ void pack_weights(const Pass& pass, const Sizes& sizes, int first_unit, float* to, int64_t begin,
                             int64_t step) {
  const int units = sizes.padded_units(), half = row_width<Pass>(sizes) * kSums<Pass> * kUnits;
  for (int64_t index = begin; index < sizes.slice_weights(); index += step) {
    const int part = static_cast<int>(index % 4), lane = static_cast<int>(index / 4 % kUnits);
    const int sum = static_cast<int>(index / (4 * kUnits) % kSums<Pass>);
    const int tile = static_cast<int>(index / (2 * half)), side = static_cast<int>(index / half % 2);
    const int row = static_cast<int>(index % half / (4 * kUnits * kSums<Pass>)) * 4 + part;
    const int unit = first_unit + tile * kTileUnits<Pass> + sum / Pass::kOut * kUnits + lane;
    const bool real = unit < sizes.units && row % units < sizes.units;
    to[index] = real ? pass.weight(sizes, side, row / units, row % units, sum % Pass::kOut, unit) : 0.0f;
  }
}

// The images of a block, copied to shared memory.
__device__ __forceinline__ void copy_images(const int4* from, int4* to, Block* block) {
  block->images = to;
  block->n_diagonals = 0;
  for (int e = 0; e < block->n_images; ++e) {
    const int4 image = from[e];
    if (e % threads() == thread()) to[e] = image;
    if (image.y > 0 && image.z > 0) block->n_diagonals = max(block->n_diagonals, image.y + image.z - 1);
  }
}

// kOnChip: weights and cells are in shared memory, with the states or a copy of them; else everything is in global
// memory. A constant, so that the compiler knows the address space.
template <class Pass, bool kOnChip>
__device__ __forceinline__ Block block_of(const Sizes& sizes, char* workspace) {
  const WorkspaceLayout global = workspace_layout<Pass>(sizes);
  const SharedLayout on_chip = shared_layout<Pass>(sizes);
  char* pool = dynamic_shared<char>();
  const Tables tables(sizes, reinterpret_cast<const int*>(workspace + global.tables));
  const int index = static_cast<int>(blockIdx.x), slice = index % sizes.slices, team = index / sizes.slices;
  const int group = team % sizes.groups, first_image = tables.first_image[group];
  Block block;
  block.direction = team / sizes.groups;
  block.first_unit = slice * sizes.slice_units;
  block.unit_tiles = (min(sizes.units - block.first_unit, sizes.slice_units) + kTileUnits<Pass> - 1) / kTileUnits<Pass>;
  block.sums = reinterpret_cast<float*>(pool + on_chip.sums);
  block.n_images = tables.first_image[group + 1] - first_image;
  block.pixels = reinterpret_cast<Pixel*>(pool + on_chip.pixels);
  block.arrived = reinterpret_cast<unsigned*>(workspace + global.arrived) + team;
  copy_images(tables.images + first_image, reinterpret_cast<int4*>(pool + on_chip.images), &block);

  const int first_slot = tables.first_slot[group], stride = row_stride<Pass>(sizes), cells = cell_stride<Pass>(sizes);
  const int64_t direction_slot = int64_t(block.direction) * 2 * sizes.slots + first_slot;
  float* first_state = reinterpret_cast<float*>(workspace + global.states) + direction_slot * stride;
  const Ring distant{first_state, int64_t{sizes.slots} * stride, stride};
  if (kOnChip) {
    const Ring local{reinterpret_cast<float*>(pool + on_chip.states), sizes.max_slots * stride, stride};
    block.shared = sizes.slices > 1 ? distant : local;
    block.before = Ring{local.data, sizes.slices > 1 ? 0 : local.side, stride};
    block.cells = Ring{reinterpret_cast<float*>(pool + on_chip.cells), sizes.max_slots * cells, cells};
    block.weights = reinterpret_cast<const float4*>(pool + on_chip.weights);
  } else {
    block.shared = block.before = distant;
    float* first_cell = reinterpret_cast<float*>(workspace + global.cells) + direction_slot * cells;
    block.cells = Ring{first_cell + Pass::kCells * block.first_unit, int64_t{sizes.slots} * cells, cells};
    const int64_t in_packed = (int64_t(block.direction) * sizes.slices + slice) * sizes.slice_weights();
    block.weights = reinterpret_cast<const float4*>(workspace + global.weights) + in_packed / 4;
  }
  return block;
}

// The units and pixels of a thread within a tile.
struct Place {
  int pixel, unit;  // the first ones; the others are kQuad and kUnits further
  int tile;         // of units, in the block

  template <class Pass, int P>
  static __device__ __forceinline__ Place of(const Block& block, int task) {
    const int lane = thread() % kWarp;
    const int tile = task % block.unit_tiles;
    return Place{task / block.unit_tiles * P * kQuad + lane / 16 * 2 + lane % 2,
                 tile * kTileUnits<Pass> + lane / 2 % kUnits, tile};
  }
};

// sums = some of the rows of both previous pixels of each pixel, times the weights. Surplus pixels repeat the last one.
template <class Pass, int P>
__device__ __forceinline__ void multiply(const Sizes& sizes, const Block& block, int diagonal, const Pixel* pixels,
                                         int count, const Place& place, int part, int parts,
                                         float (&sums)[P][kSums<Pass>]) {
  const int depth = row_width<Pass>(sizes) / 4, begin = 2 * depth * part / parts, end = 2 * depth * (part + 1) / parts;
  const float4* weight =
      block.weights + (place.tile * 2 * depth + begin) * (kSums<Pass> * kUnits) + place.unit % kUnits;
  const float4* rows[P];
#pragma unroll
  for (int m = 0; m < P; ++m) {
    const int slot = pixels[min(place.pixel + m * kQuad, count - 1)].slot;
    rows[m] = reinterpret_cast<const float4*>(block.before.at(diagonal + 1, slot));
  }
#pragma unroll 2
  for (int k = begin; k < end; ++k, weight += kSums<Pass> * kUnits) {
    const int at = k + (k >= depth);  // the second row begins 4 floats after the first one
    float4 x[P];
#pragma unroll
    for (int m = 0; m < P; ++m) x[m] = rows[m][at];
#pragma unroll
    for (int n = 0; n < kSums<Pass>; ++n) {
      const float4 w = weight[n * kUnits];
#pragma unroll
      for (int m = 0; m < P; ++m)
        sums[m][n] = fmaf(x[m].w, w.w, fmaf(x[m].z, w.z, fmaf(x[m].y, w.y, fmaf(x[m].x, w.x, sums[m][n]))));
    }
  }
}

// Waits until the blocks of the team have finished this many diagonals.
__device__ __forceinline__ void wait_for_team(const Sizes& sizes, const Block& block, int finished) {
  if (thread() == 0) {
    const unsigned goal = static_cast<unsigned>(finished) * static_cast<unsigned>(sizes.slices);
    while (!has_reached(load_acquire(block.arrived), goal)) spin_pause();
  }
  __syncthreads();
}

__device__ __forceinline__ void tell_team(const Block& block) {
  __syncthreads();
  if (thread() == 0) add_release(block.arrived, 1u);
}

// Copies the states of the previous diagonal that its pixels see. The last slot of an image is never a first one.
template <class Pass>
__device__ __forceinline__ void fetch_states(const Sizes& sizes, const Block& block, int diagonal, const Pixel* pixels,
                                             int count) {
  const int width = row_width<Pass>(sizes) / 4;
  for (int index = thread(); index < count * width; index += threads()) {
    const int p = index / width, slot = pixels[p].slot, part = index % width * 4;
    const bool last = p + 1 == count || pixels[p + 1].slot != slot + 1;
    for (int s = slot; s <= slot + last; ++s)
      cp_async16(block.before.at(0, s) + part, block.shared.at(diagonal + 1, s) + part);
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
}

// All tiles of a diagonal. wait: called by all threads between the first reads of the input and the first product.
template <int P, class Pass, class Wait>
__device__ __forceinline__ void run_tiles(const Pass& pass, const Sizes& sizes, const Block& block, int diagonal,
                                          const Pixel* pixels, int count, const Wait& wait) {
  constexpr int kUnitsHere = Pass::kThreadUnits;
  const int tasks = (count + P * kQuad - 1) / (P * kQuad) * block.unit_tiles;
  const int warps = threads() / kWarp, warp = thread() / kWarp;
  int parts = 1;
  while (2 * parts * tasks <= warps) parts *= 2;
  const int part = warp % parts;
  // With few tiles, a warp has at most two pixels of each thread; with many, the rest can be read late.
  constexpr int kEarly = P < 2 ? P : 2;
  typename Pass::Input early[kEarly][kUnitsHere];
  // Calls function(pixel, m, u, r) for this warp's share of a task: every `parts`-th of the pixels of each thread.
  const auto for_mine = [&](const Place& place, const auto& function) {
#pragma unroll
    for (int r = 0; r < P; ++r) {
      const int m = part + r * parts, p = place.pixel + m * kQuad;
      if (m >= P || p >= count) continue;
#pragma unroll
      for (int u = 0; u < kUnitsHere; ++u)
        if (block.first_unit + place.unit + u * kUnits < sizes.units) function(pixels[p], m, u, r);
    }
  };
  const auto load = [&](int task) {
    const Place place = Place::of<Pass, P>(block, task);
    for_mine(place, [&](const Pixel& pixel, int, int u, int r) {
      if (r < kEarly) early[r][u] = pass.load(sizes, pixel, block.first_unit + place.unit + u * kUnits);
    });
  };
  int task = warp / parts;
  if (task < tasks) load(task);
  wait();
  for (;;) {
    const Place place = Place::of<Pass, P>(block, task);
    if (task < tasks) {
      float sums[P][kSums<Pass>] = {};
      multiply<Pass, P>(sizes, block, diagonal, pixels, count, place, part, parts, sums);
      float* mine = block.sums + thread();
#pragma unroll
      for (int m = 0; m < P; ++m)
#pragma unroll
        for (int n = 0; n < kSums<Pass>; ++n) mine[(m * kSums<Pass> + n) * threads()] = sums[m][n];
    }
    if (parts > 1) __syncthreads();
    if (task < tasks)
      for_mine(place, [&](const Pixel& pixel, int m, int u, int r) {
        const int lane = place.unit + u * kUnits;
        const auto input = r < kEarly ? early[r][u] : pass.load(sizes, pixel, block.first_unit + lane);
        float sums[Pass::kOut] = {};
        for (int other = 0; other < parts; ++other)
#pragma unroll
          for (int n = 0; n < Pass::kOut; ++n)
            sums[n] +=
                block.sums[(m * kSums<Pass> + u * Pass::kOut + n) * threads() + thread() + (other - part) * kWarp];
        pass.finish(sizes, block, diagonal, pixel, lane, input, sums);
      });
    task += warps / parts;
    if (task >= tasks) break;
    load(task);
  }
}

// As many pixels per thread as a diagonal has, so that each weight read serves many products.
template <class Pass, class Wait>
__device__ __forceinline__ void run_diagonal(const Pass& pass, const Sizes& sizes, const Block& block, int diagonal,
                                             const Pixel* pixels, int count, const Wait& wait) {
  if (count <= kQuad)
    run_tiles<1>(pass, sizes, block, diagonal, pixels, count, wait);
  else if (count <= 2 * kQuad)
    run_tiles<2>(pass, sizes, block, diagonal, pixels, count, wait);
  else
    run_tiles<kPixels>(pass, sizes, block, diagonal, pixels, count, wait);
}

// The whole pass, with the weights on the chip.
template <class Pass, class Io>
__device__ __forceinline__ void run_on_chip(const Call<Io>& call) {
  const Sizes& sizes = call.sizes;
  const Block block = block_of<Pass, true>(sizes, call.workspace);
  const Pass pass{call.io[block.direction]};
  const SharedLayout layout = shared_layout<Pass>(sizes);
  char* pool = dynamic_shared<char>();
  pack_weights(pass, sizes, block.first_unit, reinterpret_cast<float*>(pool + layout.weights), thread(), threads());
  for (int64_t at = layout.states / 4 + thread(); at < layout.sums / 4; at += threads())
    reinterpret_cast<float*>(pool)[at] = 0.0f;
  __syncthreads();
  for (int step = 0; step < block.n_diagonals; ++step) {
    const int diagonal = Pass::kBackwards ? block.n_diagonals - 1 - step : step;
    Pixel* pixels = block.pixels + (step & 1) * sizes.max_slots;
    const int count = list_pixels(sizes, pass.io, block, diagonal, pixels);
    __syncthreads();
    run_diagonal(pass, sizes, block, diagonal, pixels, count, [&] {
      if (sizes.slices == 1) return;
      wait_for_team(sizes, block, step);
      fetch_states<Pass>(sizes, block, diagonal, pixels, count);
    });
    if (sizes.slices > 1) tell_team(block);
  }
}

// One diagonal, with packed weights and states in global memory.
template <class Pass, class Io>
__device__ __forceinline__ void run_one_diagonal(const Call<Io>& call, int diagonal) {
  const Block block = block_of<Pass, false>(call.sizes, call.workspace);
  const Pass pass{call.io[block.direction]};
  __syncthreads();
  const int count = list_pixels(call.sizes, pass.io, block, diagonal, block.pixels);
  __syncthreads();
  if (count > 0) run_diagonal(pass, call.sizes, block, diagonal, block.pixels, count, [] {});
}

template <class Pass, class Io>
__device__ __forceinline__ void pack_all(const Call<Io>& call) {
  const Sizes& sizes = call.sizes;
  const Block block = block_of<Pass, false>(sizes, call.workspace);
  const Pass pass{call.io[block.direction]};
  if (static_cast<int>(blockIdx.x) / sizes.slices % sizes.groups == 0)
    pack_weights(pass, sizes, block.first_unit, reinterpret_cast<float*>(const_cast<float4*>(block.weights)), thread(),
                 threads());
}

}  // namespace mdlstm
}  // namespace rtf
