// The layout that host and GPU agree on: how an MDLSTM is divided into blocks, and the offsets of all data.
//
// A team computes one direction of one group of images: it has `slices` blocks, each with some units for all pixels. A
// block keeps the weights of its units in shared memory over all diagonals. Blocks of different teams never wait for
// each other. Both passes consist of a product of the rows that a pixel sees of the previous diagonal:
//   forward:  kState = 1 number per unit (h), kOut = 5 columns per unit (the gates)
//   backward: kState = 5 (the gradients of the gates), kOut = 1 (the gradient of h)
// States are stored by diagonal and row of the image. There the pixel above and the one to the left are neighbours, so
// that the product reads two adjacent rows per pixel: no gathering, no masking.
#pragma once

#include "../common/cuda/device.h"
#include "mdlstm_cuda.h"

namespace rtf {
namespace mdlstm {

constexpr int kGates = 5;
constexpr int kUnits = 8;         // units side by side in a warp
constexpr int kQuad = 4;          // pixels side by side in a warp
constexpr int kPixels = 4;        // maximum number of pixels per thread
constexpr int kMaxThreads = 512;  // so that a thread has 128 registers

struct ForwardSizes {
  static constexpr int kOut = kGates, kState = 1;
  static constexpr int kCells = 1;         // numbers per unit that only its own block needs: c
  static constexpr int kThreadUnits = 1;   // units of a thread, kUnits apart
  static constexpr double kProducts = 75;  // approximate operations per multiprocessor and clock
};

struct BackwardSizes {
  static constexpr int kOut = 1, kState = kGates;
  static constexpr int kCells = 2;  // gradients of c for the pixel above, and for the one to the left
  static constexpr int kThreadUnits = 2;
  static constexpr double kProducts = 50;
};

// Units per tile, and the sums of a thread for each pixel.
template <class PassSizes>
constexpr int kTileUnits = kUnits* PassSizes::kThreadUnits;
template <class PassSizes>
constexpr int kSums = PassSizes::kOut* PassSizes::kThreadUnits;

struct Sizes {
  int batch, rows, columns, units, n_directions;
  int groups, slices, slice_units;
  int threads;                // per block
  int max_images, max_slots;  // per group
  int slots;                  // of all groups; a slot is a row of an image, or the one before its first row
  int stable, per_diagonal;

  __host__ __device__ int padded_units() const { return (units + 3) / 4 * 4; }
  __host__ __device__ int blocks() const { return n_directions * groups * slices; }
  // States are exchanged between blocks through global memory.
  __host__ __device__ bool shares_states() const { return slices > 1 || per_diagonal; }
  __host__ __device__ int64_t slice_weights() const { return int64_t(2 * kGates) * padded_units() * slice_units; }
};

// Floats per row of states, without and with the padding that makes rows start in different banks of shared memory.
template <class PassSizes>
__host__ __device__ int row_width(const Sizes& sizes) {
  return PassSizes::kState * sizes.padded_units();
}
template <class PassSizes>
__host__ __device__ int row_stride(const Sizes& sizes) {
  return row_width<PassSizes>(sizes) + 4;
}

// Floats per slot of the states c: of a block's units in shared memory, of all units in global memory.
template <class PassSizes>
__host__ __device__ int cell_stride(const Sizes& sizes) {
  return PassSizes::kCells * sizes.slice_units * (sizes.per_diagonal ? sizes.slices : 1);
}

// Divides a piece of memory into consecutive parts.
struct Carver {
  int64_t used = 0;

  __host__ __device__ int64_t take(int64_t bytes, int64_t alignment) {
    const int64_t start = (used + alignment - 1) / alignment * alignment;
    used = start + bytes;
    return start;
  }
};

// Offsets in the shared memory of a block, in bytes.
struct SharedLayout {
  int64_t weights, states, cells, sums, pixels, images, total;
};

template <class PassSizes>
__host__ __device__ SharedLayout shared_layout(const Sizes& sizes) {
  const int64_t slots = sizes.max_slots, on_chip = sizes.per_diagonal ? 0 : sizeof(float);
  Carver carver;
  SharedLayout layout;
  layout.weights = carver.take(on_chip * sizes.slice_weights(), 128);
  // both diagonals, or a copy of the previous one
  layout.states = carver.take(on_chip * (sizes.slices > 1 ? 1 : 2) * slots * row_stride<PassSizes>(sizes), 16);
  layout.cells = carver.take(on_chip * 2 * slots * cell_stride<PassSizes>(sizes), 16);
  layout.sums = carver.take(int64_t(sizeof(float)) * sizes.threads * kPixels * kSums<PassSizes>, 16);
  layout.pixels = carver.take((sizes.per_diagonal ? 1 : 2) * slots * int64_t(sizeof(int4)), 16);
  layout.images = carver.take(sizes.max_images * int64_t(sizeof(int4)), 16);
  layout.total = carver.used;
  return layout;
}

// Offsets in the workspace, in bytes. Everything up to `zeroed` has to be 0 before the kernel runs.
struct WorkspaceLayout {
  int64_t arrived, states, cells, zeroed, tables, weights, total;
};

// Integers that the host derives from the sizes of the images: see the fields of Tables.
__host__ __device__ inline int64_t table_size(const Sizes& sizes) {
  return 6 * int64_t(sizes.batch) + 2 * (int64_t(sizes.groups) + 1);
}

template <class PassSizes>
__host__ __device__ WorkspaceLayout workspace_layout(const Sizes& sizes) {
  const int64_t rows = int64_t(2) * sizes.n_directions * sizes.slots * sizeof(float);
  Carver carver;
  WorkspaceLayout layout;
  layout.arrived = carver.take(int64_t(sizes.n_directions) * sizes.groups * sizeof(unsigned), 256);
  layout.states = carver.take(sizes.shares_states() ? rows * row_stride<PassSizes>(sizes) : 0, 256);
  layout.cells = carver.take(sizes.per_diagonal ? rows * cell_stride<PassSizes>(sizes) : 0, 256);
  layout.zeroed = carver.used;
  layout.tables = carver.take(table_size(sizes) * int64_t(sizeof(int)), 256);
  const int64_t packed = sizes.slice_weights() * sizes.slices * sizes.n_directions * int64_t(sizeof(float));
  layout.weights = carver.take(sizes.per_diagonal ? packed : 0, 256);
  layout.total = carver.take(0, 256);
  return layout;
}

// The tables in the workspace.
struct Tables {
  const int4* images;      // [batch], by group: index, height, width, its first slot in its group
  const int2* sizes;       // [batch]: height, width
  const int* first_image;  // [groups + 1]: first image of a group
  const int* first_slot;   // [groups + 1]: first state of a group within a direction

  __host__ __device__ Tables(const Sizes& of, const int* start)
      : images(reinterpret_cast<const int4*>(start)),
        sizes(reinterpret_cast<const int2*>(start + 4 * of.batch)),
        first_image(start + 6 * of.batch),
        first_slot(first_image + of.groups + 1) {}
};

}  // namespace mdlstm
}  // namespace rtf
