// What both passes of the MDLSTM on a GPU share: the loop over the diagonals of a team, and the product of each.
//
// A diagonal is cut into tiles of 8 units x 4 P pixels for each warp: a thread has one unit of P pixels with all columns of
// the product, so the cell follows in its registers. Reads of a warp go to 8 weights x 4 pixels at once: with P = 2 the
// multipliers are busy, not the shared memory. What a tile needs of the input is asked for before the block waits for others.
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
  int up, left;  // the pixels before it in [B, Y, X]; -1: beside the image
};

// The states of two diagonals, which take turns.
struct Ring {
  float* data;
  int side;  // 0: there is only one of them
  int stride;

  __device__ __forceinline__ float* at(int diagonal, int slot) const {
    return data + ((diagonal & 1) * side + slot * stride);
  }
};

// Whose pixels and units a block computes, and where it has what.
struct Block {
  int direction, first_unit, unit_tiles;
  const int4* images;
  int n_images, n_diagonals;
  Pixel* pixels;  // of one diagonal; behind them is room for those of the next
  const float4* weights;
  Ring shared;  // the states of the team
  Ring before;  // the same as the product reads them: of the diagonal before
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

// Writes down the pixels of a diagonal, image by image and row by row. All threads together; returns how many there are.
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

// The units of the first slice in weights that lie as the product reads them: [unit / 8][row of both before][column][unit % 8],
// four rows together, 0 beside the real ones. The others follow where they are.
template <class Pass>
__device__ void pack_weights(const Pass& pass, const Sizes& sizes, int first_unit, float* to, int64_t begin, int64_t step) {
  const int half = row_width<Pass>(sizes) / 4 * Pass::kOut * kUnits * 4, units = sizes.padded_units();
  const int64_t total = sizes.slice_weights();
  for (int64_t index = begin; index < total; index += step) {
    const int part = static_cast<int>(index % 4), lane = static_cast<int>(index / 4 % kUnits);
    const int column = static_cast<int>(index / (4 * kUnits) % Pass::kOut);
    const int tile = static_cast<int>(index / (2 * half)), side = static_cast<int>(index / half % 2);
    const int row = static_cast<int>(index % half / (4 * kUnits * Pass::kOut)) * 4 + part;
    const int unit = first_unit + tile * kUnits + lane;
    const bool real = unit < sizes.units && row % units < sizes.units;
    to[index] = real ? pass.weight(sizes, side, row / units, row % units, column, unit) : 0.0f;
  }
}

// The images of a block, copied to where all its threads find them fast.
__device__ __forceinline__ void copy_images(const int4* from, int4* to, Block* block) {
  block->images = to;
  block->n_diagonals = 0;
  for (int e = 0; e < block->n_images; ++e) {
    const int4 image = from[e];
    if (e % threads() == thread()) to[e] = image;
    if (image.y > 0 && image.z > 0) block->n_diagonals = max(block->n_diagonals, image.y + image.z - 1);
  }
}

// kOnChip: weights and cells are in shared memory, with the states or a copy of them; else all is in global memory. A constant,
// such that the compiler knows which memory it reads.
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
  block.unit_tiles = (min(sizes.units - block.first_unit, sizes.slice_units) + kUnits - 1) / kUnits;
  block.n_images = tables.first_image[group + 1] - first_image;
  block.pixels = reinterpret_cast<Pixel*>(pool + on_chip.pixels);
  block.arrived = reinterpret_cast<unsigned*>(workspace + global.arrived) + team;
  copy_images(tables.images + first_image, reinterpret_cast<int4*>(pool + on_chip.images), &block);

  const int first_slot = tables.first_slot[group], stride = row_stride<Pass>(sizes), cells = cell_stride<Pass>(sizes);
  const int64_t direction_slot = int64_t(block.direction) * 2 * sizes.slots + first_slot;
  const Ring distant{reinterpret_cast<float*>(workspace + global.states) + direction_slot * stride, sizes.slots * stride, stride};
  if (kOnChip) {
    const Ring local{reinterpret_cast<float*>(pool + on_chip.states), sizes.max_slots * stride, stride};
    block.shared = sizes.slices > 1 ? distant : local;
    block.before = Ring{local.data, sizes.slices > 1 ? 0 : local.side, stride};
    block.cells = Ring{reinterpret_cast<float*>(pool + on_chip.cells), sizes.max_slots * cells, cells};
    block.weights = reinterpret_cast<const float4*>(pool + on_chip.weights);
  } else {
    block.shared = block.before = distant;
    float* first_cell = reinterpret_cast<float*>(workspace + global.cells) + direction_slot * cells;
    block.cells = Ring{first_cell + Pass::kCells * block.first_unit, sizes.slots * cells, cells};
    const int64_t in_packed = (int64_t(block.direction) * sizes.slices + slice) * sizes.slice_weights();
    block.weights = reinterpret_cast<const float4*>(workspace + global.weights) + in_packed / 4;
  }
  return block;
}

// One unit of P pixels. Those beyond the last one repeat it, so that all that is read is there.
template <int P>
struct Tile {
  Pixel pixels[P];
  bool real[P];    // whether there is something to write
  int unit, lane;  // of all, and of the block

  __device__ __forceinline__ Tile() {}

  __device__ __forceinline__ void place(const Sizes& sizes, const Block& block, const Pixel* all, int count, int task) {
    const int in_warp = thread() % kWarp;
    lane = task % block.unit_tiles * kUnits + in_warp % kUnits;
    unit = block.first_unit + lane;
#pragma unroll
    for (int m = 0; m < P; ++m) {
      const int p = (task / block.unit_tiles * P + m) * kQuad + in_warp / kUnits;
      pixels[m] = all[min(p, count - 1)];
      real[m] = p < count && unit < sizes.units;
    }
  }
};

// sums += the rows of both pixels before each pixel, times the weights.
template <class Pass, int P>
__device__ __forceinline__ void multiply(const Sizes& sizes, const Block& block, int diagonal, const Tile<P>& tile,
                                         float (&sums)[P][Pass::kOut]) {
  const int depth = row_width<Pass>(sizes) / 4;
  const float4* weight = block.weights + tile.lane / kUnits * (2 * depth * Pass::kOut * kUnits) + tile.lane % kUnits;
  const float4* rows[P];
#pragma unroll
  for (int m = 0; m < P; ++m)
    rows[m] = reinterpret_cast<const float4*>(block.before.at(diagonal + 1, tile.pixels[m].slot));
  for (int side = 0; side < 2; ++side) {
#pragma unroll 2
    for (int k = 0; k < depth; ++k, weight += Pass::kOut * kUnits) {
      float4 x[P];
#pragma unroll
      for (int m = 0; m < P; ++m) x[m] = rows[m][k];
#pragma unroll
      for (int n = 0; n < Pass::kOut; ++n) {
        const float4 w = weight[n * kUnits];
#pragma unroll
        for (int m = 0; m < P; ++m)
          sums[m][n] = fmaf(x[m].w, w.w, fmaf(x[m].z, w.z, fmaf(x[m].y, w.y, fmaf(x[m].x, w.x, sums[m][n]))));
      }
    }
#pragma unroll
    for (int m = 0; m < P; ++m) rows[m] += block.before.stride / 4;
  }
}

// Until the blocks of the team have finished so many diagonals.
__device__ __forceinline__ void wait_for_team(const Sizes& sizes, const Block& block, int finished) {
  if (thread() == 0) {
    const unsigned goal = static_cast<unsigned>(finished) * static_cast<unsigned>(sizes.slices);
    while (load_acquire(block.arrived) < goal) spin_pause();
    __threadfence();
  }
  __syncthreads();
}

__device__ __forceinline__ void tell_team(const Block& block) {
  __syncthreads();
  if (thread() == 0) {
    __threadfence();
    atomicAdd(block.arrived, 1u);
  }
}

// Copies the states of the diagonal before that its pixels see. The last slot of an image is nobody's first one.
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
  const int tasks = (count + P * kQuad - 1) / (P * kQuad) * block.unit_tiles;
  int task = thread() / kWarp;
  Tile<P> tile;
  typename Pass::template Inputs<P> inputs;
  if (task < tasks) {
    tile.place(sizes, block, pixels, count, task);
    pass.load(sizes, tile, inputs);
  }
  wait();
  while (task < tasks) {
    float sums[P][Pass::kOut] = {};
    multiply<Pass>(sizes, block, diagonal, tile, sums);
    pass.finish(sizes, block, diagonal, tile, inputs, sums);
    task += threads() / kWarp;
    if (task >= tasks) break;
    tile.place(sizes, block, pixels, count, task);
    pass.load(sizes, tile, inputs);
  }
}

// With as few pixels for each thread as keep all warps busy.
template <class Pass, class Wait>
__device__ __forceinline__ void run_diagonal(const Pass& pass, const Sizes& sizes, const Block& block, int diagonal,
                                             const Pixel* pixels, int count, const Wait& wait) {
  const int quads = (count + kQuad - 1) / kQuad, warps = threads() / kWarp;
  if (quads * block.unit_tiles <= warps)
    run_tiles<1>(pass, sizes, block, diagonal, pixels, count, wait);
  else if ((quads + 1) / 2 * block.unit_tiles <= warps)
    run_tiles<2>(pass, sizes, block, diagonal, pixels, count, wait);
  else
    run_tiles<4>(pass, sizes, block, diagonal, pixels, count, wait);
}

// The whole pass with the weights on the chip.
template <class Pass, class Io>
__device__ __forceinline__ void run_on_chip(const Call<Io>& call) {
  const Sizes& sizes = call.sizes;
  const Block block = block_of<Pass, true>(sizes, call.workspace);
  const Pass pass{call.io[block.direction]};
  const SharedLayout layout = shared_layout<Pass>(sizes);
  char* pool = dynamic_shared<char>();
  pack_weights(pass, sizes, block.first_unit, reinterpret_cast<float*>(pool + layout.weights), thread(), threads());
  for (int64_t at = layout.states / 4 + thread(); at < layout.pixels / 4; at += threads())
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

// One diagonal with weights that were packed before and states in global memory.
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
    pack_weights(pass, sizes, block.first_unit, reinterpret_cast<float*>(const_cast<float4*>(block.weights)), thread(), threads());
}

}  // namespace mdlstm
}  // namespace rtf
