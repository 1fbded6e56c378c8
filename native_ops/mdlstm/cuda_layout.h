// What the host and the GPU have to agree on: how an MDLSTM is dealt out to blocks, and where everything lies.
//
// A team is what computes one direction of one group of images: `slices` blocks, each with some units for all its pixels. A
// block keeps the weights of its units in shared memory over all diagonals. Blocks of different teams never wait for each
// other. What both passes have in common is a product of the rows that a pixel sees of the diagonal before:
//   forward:  kState = 1 number for each unit (h), kOut = 5 columns for each unit (the gates)
//   backward: kState = 5 (the gradients of the gates), kOut = 1 (the gradient of h)
// States are stored by diagonal and row of the image. There the pixel above and the one to the left are neighbours, and
// what the product reads of a pixel are two neighbouring rows: nothing is gathered, nothing is masked.
#pragma once

#include "../common/cuda/device.h"
#include "mdlstm_cuda.h"

namespace rtf {
namespace mdlstm {

constexpr int kGates = 5;
constexpr int kUnits = 8;         // units beside each other in a warp
constexpr int kQuad = 4;          // pixels beside each other in a warp
constexpr int kPixels = 4;        // the most pixels of a thread
constexpr int kMaxThreads = 512;  // such that a thread has 128 registers

struct ForwardSizes {
  static constexpr int kOut = kGates, kState = 1;
  static constexpr int kCells = 1;         // numbers for each unit that only its own block needs: c
  static constexpr int kThreadUnits = 1;   // units of a thread, kUnits apart
  static constexpr double kProducts = 75;  // how many a multiprocessor does in a clock, roughly
};

struct BackwardSizes {
  static constexpr int kOut = 1, kState = kGates;
  static constexpr int kCells = 2;  // gradients of c of the pixel above, and of the one to the left
  static constexpr int kThreadUnits = 2;
  static constexpr double kProducts = 50;
};

// Units of a tile, and the sums of a thread for each pixel.
template <class PassSizes>
constexpr int kTileUnits = kUnits* PassSizes::kThreadUnits;
template <class PassSizes>
constexpr int kSums = PassSizes::kOut* PassSizes::kThreadUnits;

struct Sizes {
  int batch, rows, columns, units, n_directions;
  int groups, slices, slice_units;
  int threads;                // of a block
  int max_images, max_slots;  // of a group
  int slots;                  // of all groups; a slot is a row of an image, or the one before its first
  int stable, per_diagonal;

  __host__ __device__ int padded_units() const { return (units + 3) / 4 * 4; }
  __host__ __device__ int blocks() const { return n_directions * groups * slices; }
  // States travel from block to block through global memory.
  __host__ __device__ bool shares_states() const { return slices > 1 || per_diagonal; }
  __host__ __device__ int64_t slice_weights() const { return int64_t(2 * kGates) * padded_units() * slice_units; }
};

// Floats of a row of states, without and with what makes rows start in different banks of shared memory.
template <class PassSizes>
__host__ __device__ int row_width(const Sizes& sizes) {
  return PassSizes::kState * sizes.padded_units();
}
template <class PassSizes>
__host__ __device__ int row_stride(const Sizes& sizes) {
  return row_width<PassSizes>(sizes) + 4;
}

// Floats of the states of c of a slot: in shared memory of the units of a block, in global memory of all.
template <class PassSizes>
__host__ __device__ int cell_stride(const Sizes& sizes) {
  return PassSizes::kCells * sizes.slice_units * (sizes.per_diagonal ? sizes.slices : 1);
}

// Deals out consecutive parts of a piece of memory.
struct Carver {
  int64_t used = 0;

  __host__ __device__ int64_t take(int64_t bytes, int64_t alignment) {
    const int64_t start = (used + alignment - 1) / alignment * alignment;
    used = start + bytes;
    return start;
  }
};

// Where everything lies in the shared memory of a block; bytes.
struct SharedLayout {
  int64_t weights, states, cells, sums, pixels, images, total;
};

template <class PassSizes>
__host__ __device__ SharedLayout shared_layout(const Sizes& sizes) {
  const int64_t slots = sizes.max_slots, on_chip = sizes.per_diagonal ? 0 : sizeof(float);
  Carver carver;
  SharedLayout layout;
  layout.weights = carver.take(on_chip * sizes.slice_weights(), 128);
  // both diagonals, or a copy of the one before
  layout.states = carver.take(on_chip * (sizes.slices > 1 ? 1 : 2) * slots * row_stride<PassSizes>(sizes), 16);
  layout.cells = carver.take(on_chip * 2 * slots * cell_stride<PassSizes>(sizes), 16);
  layout.sums = carver.take(int64_t(sizeof(float)) * sizes.threads * kPixels * kSums<PassSizes>, 16);
  layout.pixels = carver.take((sizes.per_diagonal ? 1 : 2) * slots * int64_t(sizeof(int4)), 16);
  layout.images = carver.take(sizes.max_images * int64_t(sizeof(int4)), 16);
  layout.total = carver.used;
  return layout;
}

// Where everything lies in the workspace; bytes. All up to `zeroed` has to be 0 before the kernel runs.
struct WorkspaceLayout {
  int64_t arrived, states, cells, zeroed, tables, weights, total;
};

// Integers that the host computes of the sizes of the images: see the fields of Tables.
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
  const int* first_image;  // [groups + 1]: of a group, in images
  const int* first_slot;   // [groups + 1]: of a group, in the states of a direction

  __host__ __device__ Tables(const Sizes& of, const int* start)
      : images(reinterpret_cast<const int4*>(start)),
        sizes(reinterpret_cast<const int2*>(start + 4 * of.batch)),
        first_image(start + 6 * of.batch),
        first_slot(first_image + of.groups + 1) {}
};

}  // namespace mdlstm
}  // namespace rtf
