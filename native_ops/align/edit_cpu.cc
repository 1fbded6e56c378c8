#include <algorithm>
#include <cstdint>
#include <vector>

#include "../common/ragged.h"
#include "align.h"

namespace rtf {
namespace {

// One row of the table of distances after the other.
int32_t distance(const int32_t* a, int64_t a_length, const int32_t* b, int64_t b_length, std::vector<int32_t>* row) {
  row->resize(b_length + 1);
  int32_t* d = row->data();
  for (int64_t j = 0; j <= b_length; ++j) d[j] = static_cast<int32_t>(j);
  for (int64_t i = 0; i < a_length; ++i) {
    int32_t diagonal = d[0], left = ++d[0];
    for (int64_t j = 0; j < b_length; ++j) {
      const int32_t above = d[j + 1];
      left = std::min(std::min(above, left) + 1, diagonal + (a[i] != b[j]));
      diagonal = above;
      d[j + 1] = left;
    }
  }
  return d[b_length];
}

}  // namespace
}  // namespace rtf

extern "C" void rtf_edit_distance(int64_t batch, const int32_t* a, int64_t a_step, const int32_t* a_lengths, const int32_t* b,
                                  int64_t b_step, const int32_t* b_lengths, float* distances, const RtfThreads* threads) {
  rtf::run_ranges(*threads, batch, [&](int64_t first, int64_t last) {
    std::vector<int32_t> row;
    for (int64_t i = first; i < last; ++i)
      distances[i] =
          static_cast<float>(rtf::distance(a + i * a_step, a_lengths[i], b + i * b_step, b_lengths[i], &row));
  });
}
