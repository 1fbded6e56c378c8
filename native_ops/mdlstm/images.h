// The pixels of a batch of images: where they are, and which of them run together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "mdlstm.h"

namespace rtf {

// The pixels of an image at equal distance from the corner where a direction starts are independent of each other: (i,
// d - i) for i in first .. last.
struct Diagonal {
  int64_t first, last;
};

struct Image {
  int32_t index;
  int64_t height, width;
  int64_t slots;  // offset of its states in units of H: one row before the first, then one per row

  int64_t n_diagonals() const { return height > 0 && width > 0 ? height + width - 1 : 0; }
  Diagonal diagonal(int64_t d) const { return {std::max<int64_t>(0, d - width + 1), std::min(d, height - 1)}; }
};

struct Direction {
  const RtfMdLstmShape& shape;
  bool flip_rows, flip_columns;

  // Index in [B, Y, X] of pixel (i, j), counted from the corner where the direction starts.
  int64_t at(const Image& image, int64_t i, int64_t j) const {
    const int64_t y = flip_rows ? image.height - 1 - i : i, x = flip_columns ? image.width - 1 - j : j;
    return (image.index * shape.rows + y) * shape.columns + x;
  }
};

// Calls function(first, last) for the ranges of [B, Y, X] that are padding of an image.
template <typename Function>
void for_padding(const RtfMdLstmShape& shape, const Image& image, const Function& function) {
  const int64_t start = image.index * shape.rows * shape.columns;
  for (int64_t y = 0; y < image.height; ++y)
    function(start + y * shape.columns + image.width, start + (y + 1) * shape.columns);
  function(start + image.height * shape.columns, start + shape.rows * shape.columns);
}

// Divides the images into as many shares as keep all threads busy: largest first, so that shares have similar sizes.
class ImageShares {
 public:
  ImageShares(const RtfMdLstmShape& shape, int64_t n_directions, int64_t n_threads)
      : shape_(shape), order_(shape.batch) {
    for (int64_t b = 0; b < shape.batch; ++b) order_[b] = static_cast<int32_t>(b);
    std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return area(a) > area(b); });
    int64_t shares = 1;
    while (n_directions * shares % std::max<int64_t>(1, n_threads) != 0) ++shares;
    count_ = std::max<int64_t>(1, std::min(shares, shape.batch));
  }

  int64_t count() const { return count_; }

  std::vector<Image> share(int64_t index) const {
    std::vector<Image> images;
    int64_t slots = 0;
    for (int64_t at = index; at < static_cast<int64_t>(order_.size()); at += count_) {
      const int32_t b = order_[at];
      images.push_back(Image{b, shape_.heights[b], shape_.widths[b], slots});
      slots += shape_.heights[b] + 1;
    }
    return images;
  }

 private:
  int64_t area(int32_t b) const { return static_cast<int64_t>(shape_.heights[b]) * shape_.widths[b]; }

  const RtfMdLstmShape& shape_;
  std::vector<int32_t> order_;
  int64_t count_;
};

}  // namespace rtf
