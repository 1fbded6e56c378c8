// Linear recurrences on the GPU: a thread has one column (sequence, unit) over all frames, adjacent threads adjacent
// units. It has the numbers of several frames on their way at a time, as nothing but the state depends on the frame
// before.
#include "../common/cuda/lengths.h"
#include "scan.h"

namespace rtf {
namespace {

constexpr int kThreads = 64;  // small blocks, so that few columns still fill many multiprocessors
constexpr int kAhead = 8;     // frames

// The arrays of a list, by value: kernels get no pointers to memory of the host.
struct In {
  const float* at[2];
};
struct Out {
  float* at[2];
};

struct Number {
  float re, im;
};

template <int kParts>
__device__ __forceinline__ Number read(const In& x, int64_t i) {
  return {x.at[0][i], kParts == 2 ? x.at[1][i] : 0.0f};
}

template <int kParts>
__device__ __forceinline__ void write(const Out& x, int64_t i, Number value) {
  x.at[0][i] = value.re;
  if (kParts == 2) x.at[1][i] = value.im;
}

template <int kParts>
__device__ __forceinline__ Number multiply_add(Number x, Number y, Number z) {
  if (kParts == 1) return {x.re * y.re + z.re, 0.0f};
  return {x.re * y.re - x.im * y.im + z.re, x.re * y.im + x.im * y.re + z.im};
}

__device__ __forceinline__ Number conjugate(Number x) { return {x.re, -x.im}; }

template <int kParts>
__global__ void scan_forward(RtfScanShape shape, In a, In b, In h0, Out h, Out h_last) {
  const RtfSequences& s = shape.sequences;
  const int64_t column = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x, columns = s.batch * s.units;
  if (column >= columns) return;
  const int64_t length = length_of(s, column / s.units), unit = column % s.units;
  Number state = read<kParts>(h0, column);
  const Number constant = shape.constant ? read<kParts>(a, unit) : Number{};
  for (int64_t first = 0; first < length; first += kAhead) {
    Number factors[kAhead], terms[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (first + k >= length) continue;
      const int64_t at = (s.reverse ? length - 1 - first - k : first + k) * columns + column;
      factors[k] = shape.constant ? constant : read<kParts>(a, at);
      terms[k] = read<kParts>(b, at);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (first + k >= length) continue;
      state = multiply_add<kParts>(factors[k], state, terms[k]);
      write<kParts>(h, (s.reverse ? length - 1 - first - k : first + k) * columns + column, state);
    }
  }
  for (int64_t t = length; t < s.frames; ++t) write<kParts>(h, t * columns + column, Number{});
  write<kParts>(h_last, column, state);
}

template <int kParts>
__global__ void scan_backward(RtfScanShape shape, In a, In h0, In h, In dh, In dh_last, Out da, Out db, Out dh0) {
  const RtfSequences& s = shape.sequences;
  const int64_t column = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x, columns = s.batch * s.units;
  if (column >= columns) return;
  const int64_t length = length_of(s, column / s.units), unit = column % s.units;
  Number carried = read<kParts>(dh_last, column), sum{};
  const Number constant = shape.constant ? read<kParts>(a, unit) : Number{};
  for (int64_t end = length; end > 0; end -= kAhead) {  // steps end - 1, end - 2, ...
    Number factors[kAhead], gradients[kAhead], before[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t step = end - 1 - k;
      if (step < 0) continue;
      const int64_t t = s.reverse ? length - 1 - step : step, at = t * columns + column;
      factors[k] = shape.constant ? constant : read<kParts>(a, at);
      gradients[k] = read<kParts>(dh, at);
      before[k] = step == 0 ? read<kParts>(h0, column) : read<kParts>(h, at + (s.reverse ? columns : -columns));
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t step = end - 1 - k;
      if (step < 0) continue;
      const int64_t at = (s.reverse ? length - 1 - step : step) * columns + column;
      const Number g = {gradients[k].re + carried.re, gradients[k].im + carried.im};
      write<kParts>(db, at, g);
      if (shape.constant)
        sum = multiply_add<kParts>(conjugate(before[k]), g, sum);
      else
        write<kParts>(da, at, multiply_add<kParts>(conjugate(before[k]), g, Number{}));
      carried = multiply_add<kParts>(conjugate(factors[k]), g, Number{});
    }
  }
  for (int64_t t = length; t < s.frames; ++t) {
    write<kParts>(db, t * columns + column, Number{});
    if (!shape.constant) write<kParts>(da, t * columns + column, Number{});
  }
  if (shape.constant) write<kParts>(da, column, sum);
  write<kParts>(dh0, column, carried);
}

In in(const float* const* x, int parts) { return {{x[0], parts == 2 ? x[1] : nullptr}}; }
Out out(float* const* x, int parts) { return {{x[0], parts == 2 ? x[1] : nullptr}}; }

template <typename Kernel, typename... Arrays>
const char* run(Kernel kernel, const RtfScanShape& shape, void* stream, Arrays... arrays) {
  const int64_t columns = shape.sequences.batch * shape.sequences.units;
  if (columns == 0) return nullptr;
  const unsigned blocks = static_cast<unsigned>((columns + kThreads - 1) / kThreads);
  const cudaError_t error = launch(kernel, blocks, kThreads, 0, static_cast<cudaStream_t>(stream), shape, arrays...);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace
}  // namespace rtf

extern "C" {

const char* rtf_scan_forward_cuda_f32(const RtfScanShape* shape, const float* const* a, const float* const* b,
                                      const float* const* h0, float* const* h, float* const* h_last, void* stream) {
  const int p = shape->parts;
  return rtf::run(p == 1 ? rtf::scan_forward<1> : rtf::scan_forward<2>, *shape, stream, rtf::in(a, p), rtf::in(b, p),
                  rtf::in(h0, p), rtf::out(h, p), rtf::out(h_last, p));
}

const char* rtf_scan_backward_cuda_f32(const RtfScanShape* shape, const float* const* a, const float* const* h0,
                                       const float* const* h, const float* const* dh, const float* const* dh_last,
                                       float* const* da, float* const* db, float* const* dh0, void* stream) {
  const int p = shape->parts;
  return rtf::run(p == 1 ? rtf::scan_backward<1> : rtf::scan_backward<2>, *shape, stream, rtf::in(a, p), rtf::in(h0, p),
                  rtf::in(h, p), rtf::in(dh, p), rtf::in(dh_last, p), rtf::out(da, p), rtf::out(db, p),
                  rtf::out(dh0, p));
}
}
