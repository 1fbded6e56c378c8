// The cells of the MDLSTM on a GPU: what a thread does with its unit of P pixels before and after the product.
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

// Where in [B, Y, X, n H] a pixel has part k of a unit.
__device__ __forceinline__ int64_t place(const Sizes& sizes, int pixel, int n, int k, int unit) {
  return (int64_t(pixel) * n + k) * sizes.units + unit;
}

template <class T>
struct ForwardPass : ForwardSizes {
  static constexpr bool kBackwards = false;
  const RtfMdLstmCudaForward& io;

  __device__ __forceinline__ explicit ForwardPass(const RtfMdLstmCudaForward& io_) : io(io_) {}

  // What row `row` of the state before (side 0: of the pixel above) gives to column `column` of a unit.
  __device__ __forceinline__ float weight(const Sizes& sizes, int side, int, int row, int column, int unit) const {
    return read<T>(io.r, (int64_t(side * sizes.units + row) * kGates + column) * sizes.units + unit);
  }

  template <int P>
  struct Inputs {
    float z[P][kGates];
  };

  template <int P>
  __device__ __forceinline__ void load(const Sizes& sizes, const Tile<P>& tile, Inputs<P>& in) const {
#pragma unroll
    for (int m = 0; m < P; ++m)
#pragma unroll
      for (int k = 0; k < kGates; ++k)
        in.z[m][k] = tile.real[m] ? read<T>(io.z, place(sizes, tile.pixels[m].at, kGates, k, tile.unit)) : 0.0f;
  }

  template <int P>
  __device__ __forceinline__ void finish(const Sizes& sizes, const Block& block, int diagonal, const Tile<P>& tile,
                                         const Inputs<P>& in, const float (&sums)[P][kOut]) const {
#pragma unroll
    for (int m = 0; m < P; ++m) {
      if (!tile.real[m]) continue;
      const int at = tile.pixels[m].at, slot = tile.pixels[m].slot;
      const float i = sigmoid(in.z[m][0] + sums[m][0]), f = sigmoid(in.z[m][1] + sums[m][1]);
      const float l = sigmoid(in.z[m][2] + sums[m][2]), o = sigmoid(in.z[m][3] + sums[m][3]);
      const float a = tanhf(in.z[m][4] + sums[m][4]);
      const float up = block.cells.at(diagonal + 1, slot)[tile.lane];
      const float left = block.cells.at(diagonal + 1, slot + 1)[tile.lane];
      const float kept = sizes.stable ? f * (l * left + (1.0f - l) * up) : f * left + l * up;
      const float c = kept + i * a, h = o * tanhf(c);
      const float gates[kGates] = {i, f, l, o, a};
      for (int k = 0; k < kGates; ++k) write<T>(io.gates, place(sizes, at, kGates, k, tile.unit), gates[k]);
      write<T>(io.c, place(sizes, at, 1, 0, tile.unit), c);
      write<T>(io.h, place(sizes, at, 1, 0, tile.unit), h);
      block.cells.at(diagonal, slot + 1)[tile.lane] = c;
      block.shared.at(diagonal, slot + 1)[tile.unit] = h;
    }
  }
};

template <class T>
struct BackwardPass : BackwardSizes {
  static constexpr bool kBackwards = true;
  const RtfMdLstmCudaBackward& io;

  __device__ __forceinline__ explicit BackwardPass(const RtfMdLstmCudaBackward& io_) : io(io_) {}

  // The diagonal "before" is the next one of the image: side 0 is the pixel of the same row, to which this one is the left one.
  __device__ __forceinline__ float weight(const Sizes& sizes, int side, int gate, int row, int, int unit) const {
    return read<T>(io.r, (int64_t((1 - side) * sizes.units + unit) * kGates + gate) * sizes.units + row);
  }

  template <int P>
  struct Inputs {
    float gates[P][kGates], c[P], up[P], left[P], dh[P];
  };

  template <int P>
  __device__ __forceinline__ void load(const Sizes& sizes, const Tile<P>& tile, Inputs<P>& in) const {
#pragma unroll
    for (int m = 0; m < P; ++m) {
      const auto of = [&](const void* array, int pixel, int n, int k) {
        return tile.real[m] && pixel >= 0 ? read<T>(array, place(sizes, pixel, n, k, tile.unit)) : 0.0f;
      };
      const Pixel& pixel = tile.pixels[m];
#pragma unroll
      for (int k = 0; k < kGates; ++k) in.gates[m][k] = of(io.gates, pixel.at, kGates, k);
      in.c[m] = of(io.c, pixel.at, 1, 0);
      in.up[m] = of(io.c, pixel.up, 1, 0);
      in.left[m] = of(io.c, pixel.left, 1, 0);
      in.dh[m] = of(io.dh, pixel.at, 1, 0);
    }
  }

  template <int P>
  __device__ __forceinline__ void finish(const Sizes& sizes, const Block& block, int diagonal, const Tile<P>& tile,
                                         const Inputs<P>& in, const float (&sums)[P][kOut]) const {
#pragma unroll
    for (int m = 0; m < P; ++m) {
      if (!tile.real[m]) continue;
      const int at = tile.pixels[m].at, slot = tile.pixels[m].slot;  // the slot of its own row here
      const float i = in.gates[m][0], f = in.gates[m][1], l = in.gates[m][2], o = in.gates[m][3], a = in.gates[m][4];
      const float up = in.up[m], left = in.left[m], tanh_c = tanhf(in.c[m]), dh = in.dh[m] + sums[m][0];
      const float from_right = block.cells.at(diagonal + 1, slot)[sizes.slice_units + tile.lane];
      const float from_below = block.cells.at(diagonal + 1, slot + 1)[tile.lane];
      const float dc = from_right + from_below + dh * o * (1.0f - tanh_c * tanh_c);
      const float df = sizes.stable ? l * left + (1.0f - l) * up : left, dl = sizes.stable ? f * (left - up) : up;
      const float dz[kGates] = {dc * a * i * (1.0f - i), dc * df * f * (1.0f - f), dc * dl * l * (1.0f - l),
                                dh * tanh_c * o * (1.0f - o), dc * i * (1.0f - a * a)};
      float* cells = block.cells.at(diagonal, slot);
      cells[tile.lane] = dc * (sizes.stable ? f * (1.0f - l) : l);
      cells[sizes.slice_units + tile.lane] = dc * (sizes.stable ? f * l : f);
      float* row = block.shared.at(diagonal, slot) + tile.unit;
      for (int k = 0; k < kGates; ++k) {
        write<T>(io.dz, place(sizes, at, kGates, k, tile.unit), dz[k]);
        row[k * sizes.padded_units()] = dz[k];
      }
    }
  }
};

// Whether a pixel of [B, Y, X] is in its image; else it is padding. A warp does one pixel of one direction at a time.
struct Place {
  int b, y, x, height, width;

  __device__ Place(const Sizes& sizes, const Tables& tables, int pixel)
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

// Calls function(io, pixel, place) for all pixels of all directions, with the lanes of a warp.
template <class Pass, class Io, class Function>
__device__ __forceinline__ void for_pixels(const Call<Io>& call, const Function& function) {
  const Sizes& sizes = call.sizes;
  const WorkspaceLayout layout = workspace_layout<Pass>(sizes);
  const Tables tables(sizes, reinterpret_cast<const int*>(call.workspace + layout.tables));
  const int pixels = sizes.batch * sizes.rows * sizes.columns, per_block = threads() / kWarp;
  for (int64_t task = int64_t(blockIdx.x) * per_block + thread() / kWarp; task < int64_t(pixels) * sizes.n_directions;
       task += int64_t(gridDim.x) * per_block) {
    const int pixel = static_cast<int>(task % pixels);
    function(call.io[task / pixels], pixel, Place(sizes, tables, pixel));
  }
}

// The padding of all that the forward pass gives becomes 0.
template <class T>
__device__ __forceinline__ void clear_padding(const Call<RtfMdLstmCudaForward>& call) {
  for_pixels<ForwardPass<T>>(call, [&](const RtfMdLstmCudaForward& io, int pixel, const Place& place) {
    if (place.real()) return;
    clear<T>(call.sizes, io.h, pixel, 1);
    clear<T>(call.sizes, io.c, pixel, 1);
    clear<T>(call.sizes, io.gates, pixel, kGates);
  });
}

// `before`, and 0 in the padding of what the backward pass gives.
template <class T>
__device__ __forceinline__ void collect_before(const Call<RtfMdLstmCudaBackward>& call) {
  const Sizes& sizes = call.sizes;
  for_pixels<BackwardPass<T>>(call, [&](const RtfMdLstmCudaBackward& io, int pixel, const Place& place) {
    if (!place.real()) {
      clear<T>(sizes, io.dz, pixel, kGates);
      return clear<T>(sizes, io.before, pixel, 2);
    }
    const bool has_up = io.flip_rows ? place.y + 1 < place.height : place.y > 0;
    const bool has_left = io.flip_columns ? place.x + 1 < place.width : place.x > 0;
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
