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

template <int kF, int kG>
void gate(int64_t rows, int64_t width, const float* x, float* y, const RtfThreads& threads) {
  run_rows(threads, rows, 2 * width, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float *a = x + 2 * row * width, *b = a + width;
      by_vectors(width, [&](int64_t u, auto whole, int lanes) {
        constexpr bool kWhole = decltype(whole)::value;
        const Vec value = activation<kF>(load_n<kWhole>(a + u, lanes));
        store_n<kWhole>(y + row * width + u, value * activation<kG>(load_n<kWhole>(b + u, lanes)), lanes);
      });
    }
  });
}

template <int kF, int kG>
void gate_grad(int64_t rows, int64_t width, const float* x, const float* dy, float* dx, const RtfThreads& threads) {
  run_rows(threads, rows, 2 * width, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float *a = x + 2 * row * width, *b = a + width;
      float *da = dx + 2 * row * width, *db = da + width;
      by_vectors(width, [&](int64_t u, auto whole, int lanes) {
        constexpr bool kWhole = decltype(whole)::value;
        const Vec d = load_n<kWhole>(dy + row * width + u, lanes);
        const Vec value = load_n<kWhole>(a + u, lanes), gate = load_n<kWhole>(b + u, lanes);
        store_n<kWhole>(da + u, d * derivative<kF>(value) * activation<kG>(gate), lanes);
        store_n<kWhole>(db + u, d * activation<kF>(value) * derivative<kG>(gate), lanes);
      });
    }
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
  rtf::with_function(f, [&](auto of_value) {
    rtf::with_function(g, [&](auto of_gate) {
      rtf::gate<decltype(of_value)::value, decltype(of_gate)::value>(rows, width, x, y, *threads);
    });
  });
}

void rtf_gate_grad_f32(int64_t rows, int64_t width, int f, int g, const float* x, const float* dy, float* dx,
                       const RtfThreads* threads) {
  rtf::with_function(f, [&](auto of_value) {
    rtf::with_function(g, [&](auto of_gate) {
      rtf::gate_grad<decltype(of_value)::value, decltype(of_gate)::value>(rows, width, x, dy, dx, *threads);
    });
  });
}
}
