// The factors of a product by pairs, packed tile by tile (common/tile_packing.h) as panels of 32 rows or columns.
#pragma once

#include "../common/tile_packing.h"
#include "pieces.h"

namespace rtf {

#if RTF_PAIRS

constexpr int64_t kPanelLines = 2 * kTileRows;

// A factor as lines along the depth: the rows of the left one, or the columns of the right one.
struct Lines {
  const float* data;
  int64_t step, depth_step;  // from a line to the next one, and along a line
  bool of_rows;

  const float* at(int64_t line, int64_t k) const { return data + line * step + k * depth_step; }
  bool contiguous() const { return depth_step == 1; }
};

inline Lines left_lines(const Factor& a) { return {a.data, a.row_step, a.column_step, true}; }
inline Lines right_lines(const Factor& b) { return {b.data, b.column_step, b.row_step, false}; }

// Packs some lines [line / 16][depth / 32][tile], an even number of tiles of lines, in the order in which they are in
// memory as far as tiles allow.
template <int kParts>
class PackedPanels {
 public:
  PackedPanels(const Lines& from, Range depth, Range lines, Bfloat16* to)
      : from_(from),
        depth_(depth),
        lines_(lines),
        to_(to),
        blocks_(tile_blocks(depth.size())),
        across_(round_up(lines.size(), kPanelLines) / kTileRows) {}

  int64_t tiles() const { return blocks_ * across_; }

  void pack_all() {
    while (at_ < tiles()) pack_one();
  }

  // What comes kAhead tiles later is prefetched.
  __attribute__((noinline)) void pack_one() {
    const Place place = place_of(at_++);
    if (at_ + kAhead <= tiles()) prefetch(place_of(at_ + kAhead - 1));
    const int64_t rest = depth_.end - place.k;
    const int n = lines_at(place);
    const float* from = n > 0 ? from_.at(place.line, place.k) : from_.data;
    Bfloat16* to = to_ + ((place.line - lines_.begin) / kTileRows * blocks_ + (place.k - depth_.begin) / kTileDepth) *
                             kParts * kTile;
    if (from_.contiguous())
      store(pairs_along<kParts>(from, from_.step, rest, n), !from_.of_rows, to);
    else
      store(pairs_across<kParts>(from, from_.depth_step, rest, n), from_.of_rows, to);
  }

 private:
  static constexpr int64_t kAhead = 2;

  struct Place {
    int64_t line, k;
  };

  Place place_of(int64_t index) const {
    const int64_t inner = from_.contiguous() ? blocks_ : across_;
    const int64_t first = index / inner, second = index % inner;
    return from_.contiguous() ? Place{lines_.begin + first * kTileRows, depth_.begin + second * kTileDepth}
                              : Place{lines_.begin + second * kTileRows, depth_.begin + first * kTileDepth};
  }

  int lines_at(const Place& place) const {
    return static_cast<int>(std::max<int64_t>(0, std::min(kTileRows, lines_.end - place.line)));
  }

  void prefetch(const Place& place) const {
    constexpr int64_t kLine = 16;  // floats of a cache line
    const int64_t depth = std::min(kTileDepth, depth_.end - place.k), n = lines_at(place);
    if (from_.contiguous())
      for (int64_t i = 0; i < n; ++i)
        for (int64_t k = 0; k < depth; k += kLine) prefetch_to_read(from_.at(place.line + i, place.k + k));
    else if (n > 0)
      for (int64_t k = 0; k < depth; ++k) prefetch_to_read(from_.at(place.line, place.k + k));
  }

  static void store(Pairs<kParts> pairs, bool transposed, Bfloat16* to) {
    if (transposed) pairs.transpose();
    pairs.store(to);
  }

  Lines from_;
  Range depth_, lines_;
  Bfloat16* to_;
  int64_t blocks_, across_, at_ = 0;
};

#endif

}  // namespace rtf
