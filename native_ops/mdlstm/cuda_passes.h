// The cells of the MDLSTM on a GPU: what a thread does with a unit of a pixel before and after the product.
#pragma once

#include "cuda_team.h"

namespace rtf {
namespace mdlstm {

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

template <class T>
__device__ __forceinline__ float read(const void* array, int64_t index) {
  return static_cast<float>(static_cast<const T*>(array)[index]);
}

template <class T>
__device__ __forceinline__ void write(void* array, int64_t index, float value) {
  static_cast<T*>(array)[index] = static_cast<T>(value);
}

// Offset in [B, Y, X, n H] of part k of a unit of a pixel.
__device__ __forceinline__ int64_t place(const Sizes& sizes, int pixel, int n, int k, int unit) {
  return (int64_t(pixel) * n + k) * sizes.units + unit;
}

template <class T>
struct ForwardPass : ForwardSizes {
  static constexpr bool kBackwards = false;
  const RtfMdLstmCudaForward& io;

  __device__ __forceinline__ explicit ForwardPass(const RtfMdLstmCudaForward& io_) : io(io_) {}

  // Contribution of row `row` of the previous state (side 0: of the pixel above) to column `column` of a unit.
  __device__ __forceinline__ float weight(const Sizes& sizes, int side, int, int row, int column, int unit) const {
    return read<T>(io.r, (int64_t(side * sizes.units + row) * kGates + column) * sizes.units + unit);
  }

  struct Input {
    float z[kGates];
  };

  __device__ __forceinline__ Input load(const Sizes& sizes, const Pixel& pixel, int unit) const {
    Input in;
#pragma unroll
    for (int k = 0; k < kGates; ++k) in.z[k] = read<T>(io.z, place(sizes, pixel.at, kGates, k, unit));
    return in;
  }

  // lane: the unit in its block
  __device__ __forceinline__ void finish(const Sizes& sizes, const Block& block, int diagonal, const Pixel& pixel,
                                         int lane, const Input& in, const float (&sums)[kOut]) const {
    const int unit = block.first_unit + lane, at = pixel.at, slot = pixel.slot;
    const float i = sigmoid(in.z[0] + sums[0]), f = sigmoid(in.z[1] + sums[1]), l = sigmoid(in.z[2] + sums[2]);
    const float o = sigmoid(in.z[3] + sums[3]), a = tanhf(in.z[4] + sums[4]);
    const float up = block.cells.at(diagonal + 1, slot)[lane], left = block.cells.at(diagonal + 1, slot + 1)[lane];
    const float kept = sizes.stable ? f * (l * left + (1.0f - l) * up) : f * left + l * up;
    const float c = kept + i * a, h = o * tanhf(c);
    const float gates[kGates] = {i, f, l, o, a};
#pragma unroll
    for (int k = 0; k < kGates; ++k) write<T>(io.gates, place(sizes, at, kGates, k, unit), gates[k]);
    write<T>(io.c, place(sizes, at, 1, 0, unit), c);
    write<T>(io.h, place(sizes, at, 1, 0, unit), h);
    block.cells.at(diagonal, slot + 1)[lane] = c;
    block.shared.at(diagonal, slot + 1)[unit] = h;
  }
};

template <class T>
struct BackwardPass : BackwardSizes {
  static constexpr bool kBackwards = true;
  const RtfMdLstmCudaBackward& io;

  __device__ __forceinline__ explicit BackwardPass(const RtfMdLstmCudaBackward& io_) : io(io_) {}

  // The "previous" diagonal is the next one of the image: side 0 is the pixel of the same row, whose left neighbour
  // this one is.
  __device__ __forceinline__ float weight(const Sizes& sizes, int side, int gate, int row, int, int unit) const {
    return read<T>(io.r, (int64_t((1 - side) * sizes.units + unit) * kGates + gate) * sizes.units + row);
  }

  struct Input {
    float gates[kGates], c, up, left, dh;
  };

  __device__ __forceinline__ Input load(const Sizes& sizes, const Pixel& pixel, int unit) const {
    Input in;
#pragma unroll
    for (int k = 0; k < kGates; ++k) in.gates[k] = read<T>(io.gates, place(sizes, pixel.at, kGates, k, unit));
    in.c = read<T>(io.c, place(sizes, pixel.at, 1, 0, unit));
    in.up = pixel.up < 0 ? 0.0f : read<T>(io.c, place(sizes, pixel.up, 1, 0, unit));
    in.left = pixel.left < 0 ? 0.0f : read<T>(io.c, place(sizes, pixel.left, 1, 0, unit));
    in.dh = read<T>(io.dh, place(sizes, pixel.at, 1, 0, unit));
    return in;
  }

  __device__ __forceinline__ void finish(const Sizes& sizes, const Block& block, int diagonal, const Pixel& pixel,
                                         int lane, const Input& in, const float (&sums)[kOut]) const {
    const int unit = block.first_unit + lane, at = pixel.at, slot = pixel.slot;  // the slot of its own row here
    const float i = in.gates[0], f = in.gates[1], l = in.gates[2], o = in.gates[3], a = in.gates[4];
    const float tanh_c = tanhf(in.c), dh = in.dh + sums[0];
    const float from_right = block.cells.at(diagonal + 1, slot)[sizes.slice_units + lane];
    const float from_below = block.cells.at(diagonal + 1, slot + 1)[lane];
    const float dc = from_right + from_below + dh * o * (1.0f - tanh_c * tanh_c);
    const float df = sizes.stable ? l * in.left + (1.0f - l) * in.up : in.left;
    const float dl = sizes.stable ? f * (in.left - in.up) : in.up;
    const float dz[kGates] = {dc * a * i * (1.0f - i), dc * df * f * (1.0f - f), dc * dl * l * (1.0f - l),
                              dh * tanh_c * o * (1.0f - o), dc * i * (1.0f - a * a)};
    float* cells = block.cells.at(diagonal, slot);
    cells[lane] = dc * (sizes.stable ? f * (1.0f - l) : l);
    cells[sizes.slice_units + lane] = dc * (sizes.stable ? f * l : f);
    float* row = block.shared.at(diagonal, slot) + unit;
#pragma unroll
    for (int k = 0; k < kGates; ++k) {
      write<T>(io.dz, place(sizes, at, kGates, k, unit), dz[k]);
      row[k * sizes.padded_units()] = dz[k];
    }
  }
};

// Whether a pixel of [B, Y, X] is inside its image; else it is padding. A warp handles one pixel of one direction at a
// time.
struct Spot {
  int b, y, x, height, width;

  __device__ Spot(const Sizes& sizes, const Tables& tables, int pixel)
      : b(pixel / (sizes.rows * sizes.columns)), y(pixel / sizes.columns % sizes.rows), x(pixel % sizes.columns) {
    const int2 size = tables.sizes[b];
    height = size.x;
    width = size.y;
  }
  __device__ bool real() const { return y < height && x < width; }
};

template <class T>
__device__ __forceinline__ void clear(const Sizes& sizes, void* array, int pixel, int n) {
  for (int k = thread() % kWarp; k < n * sizes.units; k += kWarp)
    write<T>(array, int64_t(pixel) * n * sizes.units + k, 0.0f);
}

// Calls function(io, pixel, spot) for all pixels of all directions, with the lanes of a warp.
template <class Pass, class Io, class Function>
__device__ __forceinline__ void for_pixels(const Call<Io>& call, const Function& function) {
  const Sizes& sizes = call.sizes;
  const WorkspaceLayout layout = workspace_layout<Pass>(sizes);
  const Tables tables(sizes, reinterpret_cast<const int*>(call.workspace + layout.tables));
  const int pixels = sizes.batch * sizes.rows * sizes.columns, per_block = threads() / kWarp;
  for (int64_t task = int64_t(blockIdx.x) * per_block + thread() / kWarp; task < int64_t(pixels) * sizes.n_directions;
       task += int64_t(gridDim.x) * per_block) {
    const int pixel = static_cast<int>(task % pixels);
    function(call.io[task / pixels], pixel, Spot(sizes, tables, pixel));
  }
}

// Zeroes the padding of the outputs of the forward pass.
template <class T>
__device__ __forceinline__ void clear_padding(const Call<RtfMdLstmCudaForward>& call) {
  for_pixels<ForwardPass<T>>(call, [&](const RtfMdLstmCudaForward& io, int pixel, const Spot& spot) {
    if (spot.real()) return;
    clear<T>(call.sizes, io.h, pixel, 1);
    clear<T>(call.sizes, io.c, pixel, 1);
    clear<T>(call.sizes, io.gates, pixel, kGates);
  });
}

// Computes `before`, and zeroes the padding of the outputs of the backward pass.
template <class T>
__device__ __forceinline__ void collect_before(const Call<RtfMdLstmCudaBackward>& call) {
  const Sizes& sizes = call.sizes;
  for_pixels<BackwardPass<T>>(call, [&](const RtfMdLstmCudaBackward& io, int pixel, const Spot& spot) {
    if (!spot.real()) {
      clear<T>(sizes, io.dz, pixel, kGates);
      return clear<T>(sizes, io.before, pixel, 2);
    }
    const bool has_up = io.flip_rows ? spot.y + 1 < spot.height : spot.y > 0;
    const bool has_left = io.flip_columns ? spot.x + 1 < spot.width : spot.x > 0;
    const int up = pixel + (io.flip_rows ? sizes.columns : -sizes.columns), left = pixel + (io.flip_columns ? 1 : -1);
    for (int u = thread() % kWarp; u < sizes.units; u += kWarp) {
      const int64_t to = int64_t(pixel) * 2 * sizes.units + u;
      write<T>(io.before, to, has_up ? read<T>(io.h, int64_t(up) * sizes.units + u) : 0.0f);
      write<T>(io.before, to + sizes.units, has_left ? read<T>(io.h, int64_t(left) * sizes.units + u) : 0.0f);
    }
  });
}

}  // namespace mdlstm
}  // namespace rtf
