// Host-side planning of the MDLSTM on a GPU: how images are grouped, and how many blocks share a direction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda_layout.h"
#include "images.h"

namespace rtf {
namespace mdlstm {

// Sizes of the groups when images are dealt out largest first.
struct Grouping {
  std::vector<std::vector<Image>> groups;
  int64_t max_images = 0, max_slots = 0, slots = 0;
  int64_t pixels = 0;     // maximum over the diagonals of a group
  int64_t diagonals = 0;  // of the longest group

  Grouping(const RtfMdLstmShape& shape, int64_t count) {
    const ImageShares shares(shape, 1, count);
    for (int64_t g = 0; g < shares.count(); ++g) {
      groups.push_back(shares.share(g));
      int64_t group_slots = 0, group_pixels = 0;
      for (const Image& image : groups.back()) {
        group_slots += image.height + 1;
        group_pixels += std::min(image.height, image.width);
        diagonals = std::max(diagonals, image.n_diagonals());
      }
      slots += group_slots;
      max_slots = std::max(max_slots, group_slots);
      pixels = std::max(pixels, group_pixels);
      max_images = std::max<int64_t>(max_images, groups.back().size());
    }
  }
};

inline int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// The number of threads for which each has at least four rows of the product of a tile, limited by the size of a block.
template <class PassSizes>
int threads_of(const Grouping& grouping, const RtfMdLstmShape& shape, int slice_units) {
  const int64_t tiles = ceil_div(grouping.pixels, kQuad * kPixels) * int64_t(slice_units / kTileUnits<PassSizes>);
  const int64_t rows = ceil_div(shape.units, 4) * 2 * PassSizes::kState;
  int threads = 128;
  while (threads < kMaxThreads && threads < kWarp * tiles * rows / 4) threads *= 2;
  return threads;
}

inline Sizes sizes_of(const RtfMdLstmShape& shape, int64_t n_directions, const Grouping& grouping, int slice_units,
                      int threads, bool per_diagonal) {
  Sizes sizes{};
  sizes.batch = static_cast<int>(shape.batch);
  sizes.rows = static_cast<int>(shape.rows);
  sizes.columns = static_cast<int>(shape.columns);
  sizes.units = static_cast<int>(shape.units);
  sizes.n_directions = static_cast<int>(n_directions);
  sizes.groups = static_cast<int>(grouping.groups.size());
  sizes.slices = ceil_div(shape.units, slice_units);
  sizes.slice_units = slice_units;
  sizes.threads = threads;
  sizes.max_images = static_cast<int>(grouping.max_images);
  sizes.max_slots = static_cast<int>(grouping.max_slots);
  sizes.slots = static_cast<int>(grouping.slots);
  sizes.stable = shape.stable;
  sizes.per_diagonal = per_diagonal;
  return sizes;
}

// The integers of Tables.
inline std::vector<int> table_of(const RtfMdLstmShape& shape, const Grouping& grouping) {
  std::vector<int> images, sizes, first_image{0}, first_slot{0};
  for (const std::vector<Image>& group : grouping.groups) {
    int slots = 0;
    for (const Image& image : group) {
      const int fields[] = {image.index, static_cast<int>(image.height), static_cast<int>(image.width),
                            static_cast<int>(image.slots)};
      images.insert(images.end(), fields, fields + 4);
      slots += fields[1] + 1;
    }
    first_image.push_back(first_image.back() + static_cast<int>(group.size()));
    first_slot.push_back(first_slot.back() + slots);
  }
  for (int64_t b = 0; b < shape.batch; ++b) sizes.insert(sizes.end(), {shape.heights[b], shape.widths[b]});
  for (const std::vector<int>* part : {&sizes, &first_image, &first_slot})
    images.insert(images.end(), part->begin(), part->end());
  return images;
}

// Estimated clocks of a call: products, fixed costs per diagonal, waiting for the other blocks of a team, and copying
// their states.
template <class PassSizes>
double clocks_of(const Sizes& sizes, const Grouping& grouping, int multiprocessors) {
  constexpr double kStart = 1200, kBarrier = 1800, kBytes = 48;
  const int64_t tile = kQuad * std::min<int64_t>(kPixels, ceil_div(grouping.pixels, kQuad));
  const int64_t pixels = ceil_div(grouping.pixels, std::max<int64_t>(tile, 1)) * tile;
  const double products = PassSizes::kProducts * (sizes.threads < 256 ? 0.7 : 1);  // few threads wait longer for memory
  double diagonal = kStart + pixels * sizes.slice_weights() / products;
  if (sizes.slices > 1) diagonal += kBarrier + sizeof(float) * pixels * row_width<PassSizes>(sizes) / kBytes;
  return diagonal * grouping.diagonals * ceil_div(sizes.blocks(), multiprocessors);
}

template <class PassSizes>
RtfMdLstmCudaPlan plan_of(const Sizes& sizes) {
  RtfMdLstmCudaPlan plan{};
  plan.per_diagonal = sizes.per_diagonal;
  plan.groups = sizes.groups;
  plan.slices = sizes.slices;
  plan.units_of_slice = sizes.slice_units;
  plan.threads = sizes.threads;
  plan.shared_bytes = shared_layout<PassSizes>(sizes).total;
  plan.workspace_bytes = workspace_layout<PassSizes>(sizes).total;
  return plan;
}

// The fastest plan that keeps the weights on the chip: a team is a single block, or a few that are resident at the same
// time. If none fits, one launch per diagonal, with one group per image.
template <class PassSizes>
RtfMdLstmCudaPlan best_plan(const RtfMdLstmShape& shape, int64_t n_directions, const RtfMdLstmCudaLimits& limits) {
  const int tiles = ceil_div(shape.units, kTileUnits<PassSizes>);
  double best = 0;
  RtfMdLstmCudaPlan plan{};
  const auto consider = [&](int slices, int64_t groups) {
    const int slice_units = ceil_div(tiles, slices) * kTileUnits<PassSizes>;
    if (groups < 1 || ceil_div(shape.units, slice_units) != slices) return;
    const Grouping grouping(shape, groups);
    const int threads = threads_of<PassSizes>(grouping, shape, slice_units);
    Sizes sizes = sizes_of(shape, n_directions, grouping, slice_units, threads, false);
    while (shared_layout<PassSizes>(sizes).total > limits.shared_bytes && sizes.threads > 128) sizes.threads /= 2;
    if (shared_layout<PassSizes>(sizes).total > limits.shared_bytes) return;
    const double clocks = clocks_of<PassSizes>(sizes, grouping, limits.multiprocessors);
    if (plan.threads != 0 && clocks >= best) return;
    best = clocks;
    plan = plan_of<PassSizes>(sizes);
  };
  consider(1, shape.batch);
  for (int slices = 1; slices <= tiles; ++slices)
    consider(slices, std::min<int64_t>(shape.batch, limits.multiprocessors / (n_directions * slices)));
  if (plan.threads != 0) return plan;
  const Grouping grouping(shape, shape.batch);
  const int slice_units = std::max(kTileUnits<PassSizes>, std::min(ceil_div(shape.units, kUnits), 2) * kUnits);
  const int threads = threads_of<PassSizes>(grouping, shape, slice_units);
  return plan_of<PassSizes>(sizes_of(shape, n_directions, grouping, slice_units, threads, true));
}

}  // namespace mdlstm
}  // namespace rtf
