#include <algorithm>
#include <cmath>
#include <vector>

#include "../common/rows.h"
#include "batch_norm.h"
#include "functions.h"

namespace rtf {
namespace {

bool is_valid(const RtfBatchNorm& s, int64_t row) { return !s.mask || s.mask[row]; }

int64_t valid_rows(const RtfBatchNorm& s, int64_t first, int64_t last) {
  int64_t count = 0;
  for (int64_t row = first; row < last; ++row) count += is_valid(s, row);
  return count;
}

// Mean and sum of squared distances from it, for the rows of a block.
void add_block(const RtfBatchNorm& s, const float* x, int64_t first, int64_t last, float* mean, float* squares) {
  std::fill(mean, mean + s.width, 0.0f);
  std::fill(squares, squares + s.width, 0.0f);
  const int64_t count = valid_rows(s, first, last);
  if (count == 0) return;
  for (int64_t row = first; row < last; ++row)
    if (is_valid(s, row))
      by_vectors(s.width, [&](int64_t u, auto whole, int lanes) {
        constexpr bool kWhole = decltype(whole)::value;
        store_n<kWhole>(mean + u, load_n<kWhole>(mean + u, lanes) + load_n<kWhole>(x + row * s.width + u, lanes),
                        lanes);
      });
  for (int64_t u = 0; u < s.width; ++u) mean[u] /= static_cast<float>(count);
  for (int64_t row = first; row < last; ++row)
    if (is_valid(s, row))
      by_vectors(s.width, [&](int64_t u, auto whole, int lanes) {
        constexpr bool kWhole = decltype(whole)::value;
        const Vec d = load_n<kWhole>(x + row * s.width + u, lanes) - load_n<kWhole>(mean + u, lanes);
        store_n<kWhole>(squares + u, load_n<kWhole>(squares + u, lanes) + d * d, lanes);
      });
}

// The parameters of a call, by channel: y = f((x - mean) * slope + shift).
struct Line {
  Line(const RtfBatchNorm& s, const float* variance, const float* scale, const float* given)
      : factor(s.width), slope(s.width), shift(s.width) {
    for (int64_t u = 0; u < s.width; ++u) {
      factor[u] = 1.0f / std::sqrt(variance[u] + s.epsilon);
      slope[u] = scale ? factor[u] * scale[u] : factor[u];
      shift[u] = given ? given[u] : 0.0f;
    }
  }

  template <bool kWhole>
  Vec at(Vec distance, int64_t u, int lanes) const {
    return distance * load_n<kWhole>(slope.data() + u, lanes) + load_n<kWhole>(shift.data() + u, lanes);
  }

  std::vector<float> factor, slope, shift;
};

template <int kFunction>
void forward(const RtfBatchNorm& s, const float* x, const float* mean, const Line& line, float* y,
             const RtfThreads& threads) {
  run_rows(threads, s.rows, s.width, [&](int64_t first, int64_t last) {
    for (int64_t at = first * s.width; at < last * s.width; at += s.width)
      by_vectors(s.width, [&](int64_t u, auto whole, int lanes) {
        constexpr bool kWhole = decltype(whole)::value;
        const Vec d = load_n<kWhole>(x + at + u, lanes) - load_n<kWhole>(mean + u, lanes);
        store_n<kWhole>(y + at + u, activation<kFunction>(line.at<kWhole>(d, u, lanes)), lanes);
      });
  });
}

// dx becomes the gradient of the argument of f; sums are those of it, and of it times x - mean.
template <int kFunction>
void before_function(const RtfBatchNorm& s, const float* dy, const float* x, const float* mean, const Line& line,
                     float* dx, float* sums, float* products, const RtfThreads& threads) {
  run_blocks(threads, s.rows, s.width, [&](int64_t first, int64_t last, int64_t block) {
    float *sum = sums + block * s.width, *product = products + block * s.width;
    std::fill(sum, sum + s.width, 0.0f);
    std::fill(product, product + s.width, 0.0f);
    for (int64_t at = first * s.width; at < last * s.width; at += s.width)
      by_vectors(s.width, [&](int64_t u, auto whole, int lanes) {
        constexpr bool kWhole = decltype(whole)::value;
        const Vec distance = load_n<kWhole>(x + at + u, lanes) - load_n<kWhole>(mean + u, lanes);
        Vec d = load_n<kWhole>(dy + at + u, lanes);
        if (kFunction != RTF_IDENTITY) d *= derivative<kFunction>(line.at<kWhole>(distance, u, lanes));
        store_n<kWhole>(dx + at + u, d, lanes);
        store_n<kWhole>(sum + u, load_n<kWhole>(sum + u, lanes) + d, lanes);
        store_n<kWhole>(product + u, load_n<kWhole>(product + u, lanes) + d * distance, lanes);
      });
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_batch_norm_scratch_size(const RtfBatchNorm* s) { return 2 * rtf::sum_blocks(s->rows) * s->width; }

void rtf_batch_moments_f32(const RtfBatchNorm* s, const float* x, float* mean, float* variance, float* scratch,
                           const RtfThreads* threads) {
  const int64_t blocks = rtf::sum_blocks(s->rows), width = s->width;
  float *means = scratch, *squares = scratch + blocks * width;
  rtf::run_blocks(*threads, s->rows, width, [&](int64_t first, int64_t last, int64_t block) {
    rtf::add_block(*s, x, first, last, means + block * width, squares + block * width);
  });
  std::fill(mean, mean + width, 0.0f);
  std::fill(variance, variance + width, 0.0f);
  if (s->rows == 0) return;
  int64_t count = 0;
  for (int64_t block = 0; block < blocks; ++block) {  // joined as by Chan, Golub & LeVeque 1983
    const int64_t more = rtf::valid_rows(*s, block * s->rows / blocks, (block + 1) * s->rows / blocks);
    if (more == 0) continue;
    count += more;
    const float share = static_cast<float>(more) / static_cast<float>(count);
    const float weight = static_cast<float>(count - more) * share;
    for (int64_t u = 0; u < width; ++u) {
      const float d = means[block * width + u] - mean[u];
      mean[u] += d * share;
      variance[u] += squares[block * width + u] + d * d * weight;
    }
  }
  for (int64_t u = 0; u < width; ++u) variance[u] /= static_cast<float>(std::max<int64_t>(1, count));
}

void rtf_batch_norm_f32(const RtfBatchNorm* s, const float* x, const float* mean, const float* variance,
                        const float* scale, const float* shift, float* y, const RtfThreads* threads) {
  const rtf::Line line(*s, variance, scale, shift);
  rtf::with_function(s->function,
                     [&](auto function) { rtf::forward<decltype(function)::value>(*s, x, mean, line, y, *threads); });
}

void rtf_batch_norm_grad_f32(const RtfBatchNorm* s, const float* dy, const float* x, const float* mean,
                             const float* variance, const float* scale, const float* shift, float* dx, float* dscale,
                             float* dshift, float* scratch, const RtfThreads* threads) {
  const int64_t blocks = rtf::sum_blocks(s->rows), width = s->width;
  if (s->rows == 0) {
    std::fill(dscale, dscale + width, 0.0f);
    std::fill(dshift, dshift + width, 0.0f);
    return;
  }
  const rtf::Line line(*s, variance, scale, shift);
  float *sums = scratch, *products = scratch + blocks * width;
  rtf::with_function(s->function, [&](auto function) {
    rtf::before_function<decltype(function)::value>(*s, dy, x, mean, line, dx, sums, products, *threads);
  });
  rtf::add_blocks(blocks, width, sums, dshift);
  rtf::add_blocks(blocks, width, products, dscale);
  // What a valid row changes in the mean, and in the variance by its distance from it.
  std::vector<float> of_mean(width), of_variance(width);
  const float count = static_cast<float>(std::max<int64_t>(1, rtf::valid_rows(*s, 0, s->rows)));
  for (int64_t u = 0; u < width; ++u) {
    of_mean[u] = dshift[u] / count;
    of_variance[u] = dscale[u] * line.factor[u] * line.factor[u] / count;
    dscale[u] *= line.factor[u];
  }
  rtf::run_rows(*threads, s->rows, width, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const bool valid = rtf::is_valid(*s, row);
      rtf::by_vectors(width, [&](int64_t u, auto whole, int lanes) {
        constexpr bool kWhole = decltype(whole)::value;
        const int64_t at = row * width + u;
        rtf::Vec d = rtf::load_n<kWhole>(dx + at, lanes);
        if (valid) {
          const rtf::Vec distance = rtf::load_n<kWhole>(x + at, lanes) - rtf::load_n<kWhole>(mean + u, lanes);
          d -= rtf::load_n<kWhole>(&of_mean[u], lanes) + distance * rtf::load_n<kWhole>(&of_variance[u], lanes);
        }
        rtf::store_n<kWhole>(dx + at, d * rtf::load_n<kWhole>(&line.slope[u], lanes), lanes);
      });
    }
  });
}
}
