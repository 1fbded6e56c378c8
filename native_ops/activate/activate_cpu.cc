#include <algorithm>

#include "../common/philox.h"
#include "../common/rows.h"
#include "functions.h"

namespace rtf {
namespace {

constexpr int64_t kPiece = 1024;  // numbers whose dropout is drawn at once: they stay in the first cache

// Calls function(row, first unit, number of units, their keep or null) for pieces of the rows first .. last - 1.
template <typename Function>
void by_pieces(const RtfActivate& s, int64_t first, int64_t last, const Function& function) {
  const Dropout dropout({s.key, {s.counter[0], s.counter[1]}}, s.rate, s.scale);
  float buffer[kPiece + 2 * Dropout::kBlock];
  const int64_t size = s.rate > 0 ? kPiece : s.width;
  for (int64_t at = first * s.width; at < last * s.width;) {
    int64_t end = std::min(at + size, last * s.width), number = at;
    if (s.numbers && s.rate > 0) {  // pieces within a row: the next one may have any number
      const int64_t row = at / s.width;
      end = std::min(end, (row + 1) * s.width);
      number = s.numbers[row] * s.width + at % s.width;
    }
    const float* keep = s.rate > 0 ? dropout.fill(number, end - at, buffer) : nullptr;
    while (at < end) {
      const int64_t row = at / s.width, unit = at % s.width, n = std::min(s.width - unit, end - at);
      function(row, unit, n, keep);
      at += n;
      if (keep) keep += n;
    }
  }
}

template <int kFunction>
void forward(const RtfActivate& s, const float* x, const float* bias, const float* factors, const float* residual,
             float* y, const RtfThreads& threads) {
  run_rows(threads, s.rows, s.width, [&](int64_t first, int64_t last) {
    by_pieces(s, first, last, [&](int64_t row, int64_t unit, int64_t n, const float* keep) {
      const int64_t at = row * s.width + unit;
      by_vectors(n, [&](int64_t u, auto whole, int lanes) {
        constexpr bool kWhole = decltype(whole)::value;
        Vec z = load_n<kWhole>(x + at + u, lanes);
        if (bias) z += load_n<kWhole>(bias + unit + u, lanes);
        z = activation<kFunction>(z);
        if (factors) z *= load_n<kWhole>(factors + unit + u, lanes);
        if (keep) z *= load_n<kWhole>(keep + u, lanes);
        if (residual) z += load_n<kWhole>(residual + at + u, lanes);
        store_n<kWhole>(y + at + u, z, lanes);
      });
    });
  });
}

template <int kFunction>
void backward(RtfActivate s, const float* dy, const float* kept, bool of_output, const float* bias,
              const float* factors, float* dx, float* dbias, float* scratch, const RtfThreads& threads) {
  // What was dropped is 0 in the output, where the derivative is 0 too: nothing to draw.
  const float scale = kFunction == RTF_RELU && of_output && s.rate > 0 ? s.scale : 1.0f;
  if (kFunction == RTF_RELU && of_output) s.rate = 0;
  run_blocks(threads, s.rows, s.width, [&](int64_t first, int64_t last, int64_t block) {
    float* sums = scratch + block * s.width;
    if (dbias) std::fill(sums, sums + s.width, 0.0f);
    by_pieces(s, first, last, [&](int64_t row, int64_t unit, int64_t n, const float* keep) {
      const int64_t at = row * s.width + unit;
      by_vectors(n, [&](int64_t u, auto whole, int lanes) {
        constexpr bool kWhole = decltype(whole)::value;
        Vec d = load_n<kWhole>(dy + at + u, lanes) * splat(scale);
        if (factors) d *= load_n<kWhole>(factors + unit + u, lanes);
        if (keep) d *= load_n<kWhole>(keep + u, lanes);
        if (kFunction != RTF_IDENTITY) {
          Vec z = load_n<kWhole>(kept + at + u, lanes);
          if (bias && !of_output) z += load_n<kWhole>(bias + unit + u, lanes);
          d *= of_output ? derivative_of_output<kFunction>(z) : derivative<kFunction>(z);
        }
        store_n<kWhole>(dx + at + u, d, lanes);
        if (dbias) store_n<kWhole>(sums + unit + u, load_n<kWhole>(sums + unit + u, lanes) + d, lanes);
      });
    });
  });
  if (dbias) add_blocks(sum_blocks(s.rows), s.width, scratch, dbias);
}

// Gated units have a kernel for each function of the gate. One for each pair of functions would take a compiler longer
// than all else here. A function of the value other than the identity is applied before, to so many numbers of a row as
// stay in the first cache.
constexpr int64_t kGated = 256;

// Writes f(x), and f'(x) unless derivatives is null.
using Values = void (*)(int64_t n, const float* x, float* values, float* derivatives);

template <int kF>
void values(int64_t n, const float* __restrict x, float* __restrict values, float* __restrict derivatives) {
  by_vectors(n, [&](int64_t u, auto whole, int lanes) {
    constexpr bool kWhole = decltype(whole)::value;
    const Vec a = load_n<kWhole>(x + u, lanes);
    store_n<kWhole>(values + u, activation<kF>(a), lanes);
    if (derivatives) store_n<kWhole>(derivatives + u, derivative<kF>(a), lanes);
  });
}

Values values_of(int f) {
  return with_function(f, [](auto function) -> Values { return values<decltype(function)::value>; });
}

// Calls function(first of a in x, first in y, how many) for the rows, whole or in pieces.
template <typename Function>
void by_gated(int64_t rows, int64_t width, bool whole_rows, const RtfThreads& threads, const Function& function) {
  const int64_t size = whole_rows ? width : kGated;
  run_rows(threads, rows, 2 * width, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      for (int64_t u = 0; u < width; u += size)
        function(2 * row * width + u, row * width + u, std::min(size, width - u));
  });
}

template <int kG>
void gate(int64_t rows, int64_t width, int f, const float* x, float* y, const RtfThreads& threads) {
  const Values values = values_of(f);
  by_gated(rows, width, f == RTF_IDENTITY, threads, [&](int64_t of_x, int64_t of_y, int64_t n) {
    const float *a = x + of_x, *b = a + width;
    float of_a[kGated];
    if (f != RTF_IDENTITY) values(n, a, of_a, nullptr);
    const float* value = f == RTF_IDENTITY ? a : of_a;
    by_vectors(n, [&](int64_t u, auto whole, int lanes) {
      constexpr bool kWhole = decltype(whole)::value;
      const Vec gate = activation<kG>(load_n<kWhole>(b + u, lanes));
      store_n<kWhole>(y + of_y + u, load_n<kWhole>(value + u, lanes) * gate, lanes);
    });
  });
}

template <int kG>
void gate_grad(int64_t rows, int64_t width, int f, const float* x, const float* dy, float* dx,
               const RtfThreads& threads) {
  const Values values = values_of(f);
  by_gated(rows, width, f == RTF_IDENTITY, threads, [&](int64_t of_x, int64_t of_y, int64_t n) {
    const float *a = x + of_x, *b = a + width;
    float *da = dx + of_x, *db = da + width;
    float of_a[kGated], slopes[kGated];
    if (f != RTF_IDENTITY) values(n, a, of_a, slopes);
    const float *value = f == RTF_IDENTITY ? a : of_a, *slope = f == RTF_IDENTITY ? nullptr : slopes;
    by_vectors(n, [&](int64_t u, auto whole, int lanes) {
      constexpr bool kWhole = decltype(whole)::value;
      const Vec d = load_n<kWhole>(dy + of_y + u, lanes), gate = load_n<kWhole>(b + u, lanes);
      const Vec of_value = slope ? d * load_n<kWhole>(slope + u, lanes) : d;
      const Vec of_gate = d * load_n<kWhole>(value + u, lanes) * derivative<kG>(gate);
      store_n<kWhole>(da + u, of_value * activation<kG>(gate), lanes);
      store_n<kWhole>(db + u, of_gate, lanes);
    });
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

void rtf_activate_f32(const RtfActivate* shape, const float* x, const float* bias, const float* factors,
                      const float* residual, float* y, const RtfThreads* threads) {
  rtf::with_function(shape->function, [&](auto function) {
    rtf::forward<decltype(function)::value>(*shape, x, bias, factors, residual, y, *threads);
  });
}

int64_t rtf_activate_scratch_size(const RtfActivate* shape) { return rtf::sum_blocks(shape->rows) * shape->width; }

void rtf_activate_grad_f32(const RtfActivate* shape, const float* dy, const float* kept, int of_output,
                           const float* bias, const float* factors, float* dx, float* dbias, float* scratch,
                           const RtfThreads* threads) {
  if (shape->rows == 0 && dbias) std::fill(dbias, dbias + shape->width, 0.0f);
  if (shape->rows == 0 || shape->width == 0) return;
  rtf::with_function(shape->function, [&](auto function) {
    rtf::backward<decltype(function)::value>(*shape, dy, kept, of_output != 0, bias, factors, dx, dbias, scratch,
                                             *threads);
  });
}

void rtf_gate_f32(int64_t rows, int64_t width, int f, int g, const float* x, float* y, const RtfThreads* threads) {
  rtf::with_function(g, [&](auto of_gate) { rtf::gate<decltype(of_gate)::value>(rows, width, f, x, y, *threads); });
}

void rtf_gate_grad_f32(int64_t rows, int64_t width, int f, int g, const float* x, const float* dy, float* dx,
                       const RtfThreads* threads) {
  rtf::with_function(
      g, [&](auto of_gate) { rtf::gate_grad<decltype(of_gate)::value>(rows, width, f, x, dy, dx, *threads); });
}
}
