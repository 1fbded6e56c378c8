#include <cmath>

#include "../common/rows.h"
#include "../common/vector.h"
#include "norm.h"

namespace rtf {
namespace {

// The sum of the lanes, in their order.
inline float sum_of(Vec x) {
  float lanes[kLanes], sum = 0;
  store(lanes, x);
  for (float lane : lanes) sum += lane;
  return sum;
}

// x in the lanes in use, 0 in the others.
template <bool kWhole>
inline Vec only(Vec x, int lanes) {
  return kWhole ? x : load_part(reinterpret_cast<const float*>(&x), lanes);
}

void forward(const RtfNorm& s, const float* x, const float* scale, const float* bias, float* y, float* mean,
             float* factor, int64_t row) {
  x += row * s.width;
  y += row * s.width;
  Vec sum{}, squares{};
  by_vectors(s.width, [&](int64_t u, auto whole, int lanes) { sum += load_n<decltype(whole)::value>(x + u, lanes); });
  const float count = static_cast<float>(s.width), m = sum_of(sum) / count;
  by_vectors(s.width, [&](int64_t u, auto whole, int lanes) {
    constexpr bool kWhole = decltype(whole)::value;
    const Vec d = only<kWhole>(load_n<kWhole>(x + u, lanes) - splat(m), lanes);
    squares += d * d;
  });
  const float f = 1.0f / std::sqrt(sum_of(squares) / count + s.epsilon);
  by_vectors(s.width, [&](int64_t u, auto whole, int lanes) {
    constexpr bool kWhole = decltype(whole)::value;
    Vec v = (load_n<kWhole>(x + u, lanes) - splat(m)) * splat(f);
    if (scale) v *= load_n<kWhole>(scale + u, lanes);
    if (bias) v += load_n<kWhole>(bias + u, lanes);
    store_n<kWhole>(y + u, v, lanes);
  });
  mean[row] = m;
  factor[row] = f;
}

// Adds to the sums of the gradients of scale and bias.
void backward(const RtfNorm& s, const float* dy, const float* x, const float* scale, float m, float f, float* dx,
              float* dscale, float* dbias) {
  Vec sum{}, product{};
  by_vectors(s.width, [&](int64_t u, auto whole, int lanes) {
    constexpr bool kWhole = decltype(whole)::value;
    const Vec d = load_n<kWhole>(dy + u, lanes);
    const Vec z = (load_n<kWhole>(x + u, lanes) - splat(m)) * splat(f);
    store_n<kWhole>(dbias + u, load_n<kWhole>(dbias + u, lanes) + d, lanes);
    store_n<kWhole>(dscale + u, load_n<kWhole>(dscale + u, lanes) + d * z, lanes);
    const Vec g = scale ? d * load_n<kWhole>(scale + u, lanes) : d;  // 0 in the lanes that are not in use
    sum += g;
    product += g * z;
  });
  const float count = static_cast<float>(s.width), a = sum_of(sum) / count, b = sum_of(product) / count;
  by_vectors(s.width, [&](int64_t u, auto whole, int lanes) {
    constexpr bool kWhole = decltype(whole)::value;
    const Vec d = load_n<kWhole>(dy + u, lanes);
    const Vec z = (load_n<kWhole>(x + u, lanes) - splat(m)) * splat(f);
    const Vec g = scale ? d * load_n<kWhole>(scale + u, lanes) : d;
    store_n<kWhole>(dx + u, (g - splat(a) - z * splat(b)) * splat(f), lanes);
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

void rtf_norm_f32(const RtfNorm* shape, const float* x, const float* scale, const float* bias, float* y, float* mean,
                  float* factor, const RtfThreads* threads) {
  rtf::run_rows(*threads, shape->rows, shape->width, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) rtf::forward(*shape, x, scale, bias, y, mean, factor, row);
  });
}

int64_t rtf_norm_scratch_size(const RtfNorm* shape) { return 2 * rtf::sum_blocks(shape->rows) * shape->width; }

void rtf_norm_grad_f32(const RtfNorm* shape, const float* dy, const float* x, const float* scale, const float* mean,
                       const float* factor, float* dx, float* dscale, float* dbias, float* scratch,
                       const RtfThreads* threads) {
  const int64_t width = shape->width, blocks = rtf::sum_blocks(shape->rows);
  std::fill(scratch, scratch + 2 * blocks * width, 0.0f);
  float *scales = scratch, *biases = scratch + blocks * width;
  rtf::run_blocks(*threads, shape->rows, width, [&](int64_t first, int64_t last, int64_t block) {
    for (int64_t row = first; row < last; ++row)
      rtf::backward(*shape, dy + row * width, x + row * width, scale, mean[row], factor[row], dx + row * width,
                    scales + block * width, biases + block * width);
  });
  rtf::add_blocks(blocks, width, scales, dscale);
  rtf::add_blocks(blocks, width, biases, dbias);
}
}
