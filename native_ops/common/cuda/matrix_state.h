// Recurrences with a matrix as the state of a head, on the GPU. Each pass over the frames, forwards or backwards, is
//
//   state = decay * state + x y^T + x2 y2^T;   out = state^T z;   out2 = state^T z2
//
// Columns of the state are independent of each other. A block has some of them for one head of one sequence; a thread
// has up to kRows rows of one column in registers, over all frames, and some lanes of a warp share a column. Frames
// come in chunks through shared memory. Products of whole chunks, with the state between them, would take as many
// multiply-adds for each frame and more within the chunk, which pays on tensor cores only; and decays of single rows
// may be 0, so that such products can't be divided by them. Only the first and the last state are in memory.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "lengths.h"

namespace rtf {
namespace matrix_state {

constexpr int kThreads = 128;
constexpr int kRows = 16;                 // of a thread
constexpr int kMostRows = kRows * kWarp;  // of a state
constexpr int kMostFrames = 16;           // of a chunk
constexpr int kSharedBytes = 48 * 1024;   // what a block gets on any GPU

// What a decay is a factor of.
enum class Decay { kRows, kColumns };

// The second term of a state, and the second output: there is neither, or y2 is out2 as the state before the frame
// gives it, or y2 is given.
enum class Second { kNone, kRead, kGiven };

// Arrays [T, B, H, width]: x, z, x2 and z2 have rows, y, y2, out and out2 columns.
struct Pass {
  RtfSequences sequences;  // units: the number of heads; lengths in the memory of the GPU
  int rows, columns;
  int decays;       // the width of g: 1, or rows or columns
  bool backwards;   // from the last frame to the first one
  bool late;        // g, x2 and y2 (with kRead also z2 and out2) are those of the frame that ran before: one step more
  bool transposed;  // first is [B, H, columns, rows]
  const float *x, *z, *y, *g, *x2, *z2, *y2;
  float *out, *out2;
  const float* first;
  float* last;  // as first; null: not wanted
};

// A head of a sequence.
struct HeadFrames {
  const RtfSequences& all;
  int64_t b, h, length;

  __device__ HeadFrames(const RtfSequences& s, int64_t index)
      : all(s), b(index / s.units), h(index % s.units), length(length_of(s, b)) {}

  // Row of a frame in arrays [T, B, H, width].
  __device__ __forceinline__ int64_t row(int64_t t) const { return (t * all.batch + b) * all.units + h; }

  // Row of the s-th frame that runs.
  __device__ __forceinline__ int64_t row_of_step(int64_t s) const { return row(all.reverse ? length - 1 - s : s); }
};

// How the state of a head is shared.
struct Shares {
  int lanes;   // of a column, a power of 2
  int slices;  // blocks of a head
  int frames;  // of a chunk

  __host__ __device__ int rows() const { return kRows * lanes; }        // with zeros at the end
  __host__ __device__ int columns() const { return kThreads / lanes; }  // of a block
};

struct Four {
  float at[4];
};

__device__ __forceinline__ Four four(const float* from) {
  const float4 x = *reinterpret_cast<const float4*>(from);
  return {{x.x, x.y, x.z, x.w}};
}

__device__ __forceinline__ float sum_of_lanes(float x, int lanes) {
  for (int half = lanes / 2; half > 0; half /= 2) x += __shfl_xor_sync(kAllLanes, x, half);
  return x;
}

// What a block needs of a frame, in shared memory: first arrays of rows, then arrays of columns.
template <Decay kDecay, Second kSecond>
struct Arrays {
  static constexpr bool kTwo = kSecond != Second::kNone;
  static constexpr int kX = 0, kZ = 1, kX2 = 2, kZ2 = 3;
  static constexpr int kOfRows = (kTwo ? 4 : 2) + (kDecay == Decay::kRows), kRowDecay = kOfRows - 1;
  static constexpr int kY = 0, kY2 = 1;
  static constexpr int kOfColumns = (kSecond == Second::kGiven ? 2 : 1) + (kDecay == Decay::kColumns);
  static constexpr int kColumnDecay = kOfColumns - 1;

  static __host__ __device__ int floats(const Shares& shares) {
    return kOfRows * shares.rows() + kOfColumns * shares.columns();
  }
};

// Copies what one array has for the frames of a chunk: ``width`` numbers from ``from`` on in each row (a single one is
// repeated), and ``otherwise`` up to ``padded``, a power of 2, and for steps without a frame.
template <typename Function>
__device__ __forceinline__ void stage(const Pass& pass, const HeadFrames& head, const float* data, int64_t row_width,
                                      int64_t from, int64_t width, int padded, int64_t begin, int count, bool late,
                                      float otherwise, int frame_floats, float* to, const Function& function) {
  const int bits = 31 - __clz(padded);
  for (int i = static_cast<int>(threadIdx.x); i < count * padded; i += kThreads) {
    const int f = i >> bits, column = i & (padded - 1);
    const int64_t step = begin + f - late;
    float value = otherwise;
    if (column < width && step >= 0 && step < head.length)
      value = function(data[head.row_of_step(pass.backwards ? head.length - 1 - step : step) * row_width + from +
                            (row_width == 1 ? 0 : column)]);
    to[f * frame_floats + column] = value;
  }
}

template <Decay kDecay, Second kSecond>
__device__ __forceinline__ void stage_chunk(const Pass& pass, const HeadFrames& head, const Shares& shares,
                                            int64_t column, int64_t begin, int count, float* shared) {
  using A = Arrays<kDecay, kSecond>;
  const int rows = shares.rows(), columns = shares.columns(), size = A::floats(shares);
  const auto same = [](float x) { return x; };
  const auto exponential = [](float x) { return expf(x); };
  const auto of_rows = [&](const float* data, int index, bool late) {
    stage(pass, head, data, pass.rows, 0, pass.rows, rows, begin, count, late, 0.0f, size, shared + index * rows, same);
  };
  const int64_t left = pass.columns - column;
  float* behind = shared + A::kOfRows * rows;
  const auto of_columns = [&](const float* data, int index, bool late) {
    stage(pass, head, data, pass.columns, column, left, columns, begin, count, late, 0.0f, size,
          behind + index * columns, same);
  };
  of_rows(pass.x, A::kX, false);
  of_rows(pass.z, A::kZ, false);
  of_columns(pass.y, A::kY, false);
  if (A::kTwo) {
    of_rows(pass.x2, A::kX2, pass.late);
    of_rows(pass.z2, A::kZ2, pass.late && kSecond == Second::kRead);
  }
  if (kSecond == Second::kGiven) of_columns(pass.y2, A::kY2, pass.late);
  if (kDecay == Decay::kRows)
    stage(pass, head, pass.g, pass.decays, 0, pass.rows, rows, begin, count, pass.late, 1.0f, size,
          shared + A::kRowDecay * rows, exponential);
  else
    stage(pass, head, pass.g, pass.decays, pass.decays == 1 ? 0 : column, left, columns, begin, count, pass.late, 1.0f,
          size, behind + A::kColumnDecay * columns, exponential);
}

// kBefore: out reads the state before the frame; with kGiven it is out2 that does.
template <Decay kDecay, Second kSecond, bool kBefore>
__global__ void __launch_bounds__(kThreads) run_pass(const __grid_constant__ Pass pass, Shares shares) {
  using A = Arrays<kDecay, kSecond>;
  const HeadFrames head(pass.sequences, blockIdx.x / shares.slices);
  const int rows = shares.rows(), columns = shares.columns(), size = A::floats(shares);
  const int lane = static_cast<int>(threadIdx.x) % shares.lanes, own = static_cast<int>(threadIdx.x) / shares.lanes;
  const int64_t slice = static_cast<int64_t>(blockIdx.x % shares.slices) * columns, column = slice + own;
  const bool there = column < pass.columns, writes = there && lane == 0;
  const int64_t of_head = (head.b * pass.sequences.units + head.h) * pass.rows * pass.columns;
  const int64_t down = pass.transposed ? 1 : pass.columns, along = pass.transposed ? pass.rows : 1;
  // Row 4 (i lanes + lane) + j of the state is number 4 i + j here: lanes read 16 bytes each, one after the other.
  const auto row_of = [&](int i) { return 4 * (i / 4 * shares.lanes + lane) + i % 4; };
  float state[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    state[i] = there && row_of(i) < pass.rows ? pass.first[of_head + row_of(i) * down + column * along] : 0.0f;
  float* shared = dynamic_shared<float>();
  const int64_t steps = head.length + pass.late;
  for (int64_t begin = 0; begin < steps; begin += shares.frames) {
    const int count = static_cast<int>(min(static_cast<int64_t>(shares.frames), steps - begin));
    __syncthreads();  // the chunk before has been read
    stage_chunk<kDecay, kSecond>(pass, head, shares, slice, begin, count, shared);
    __syncthreads();
    for (int f = 0; f < count; ++f) {
      const float *mine = shared + f * size + 4 * lane, *behind = shared + f * size + A::kOfRows * rows + own;
      const float y = behind[A::kY * columns];
      float read = 0.0f, read2 = 0.0f, y2 = 0.0f;
      if (kSecond == Second::kGiven) y2 = behind[A::kY2 * columns];
      if (kSecond == Second::kRead) {
#pragma unroll
        for (int i = 0; i < kRows; i += 4) {
          const Four z2 = four(mine + A::kZ2 * rows + i * shares.lanes);
#pragma unroll
          for (int j = 0; j < 4; ++j) read2 += z2.at[j] * state[i + j];
        }
        read2 = y2 = sum_of_lanes(read2, shares.lanes);
      }
      const float of_column = kDecay == Decay::kColumns ? behind[A::kColumnDecay * columns] : 0.0f;
#pragma unroll
      for (int i = 0; i < kRows; i += 4) {
        const float* at = mine + i * shares.lanes;
        const Four x = four(at + A::kX * rows), z = four(at + A::kZ * rows);
        Four x2{}, z2{}, of_rows{};
        if (A::kTwo) x2 = four(at + A::kX2 * rows);
        if (kSecond == Second::kGiven) z2 = four(at + A::kZ2 * rows);
        if (kDecay == Decay::kRows) of_rows = four(at + A::kRowDecay * rows);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float before = state[i + j];
          float now = before * (kDecay == Decay::kRows ? of_rows.at[j] : of_column) + x.at[j] * y;
          if (A::kTwo) now += x2.at[j] * y2;
          read += z.at[j] * (kBefore && !A::kTwo ? before : now);
          if (kSecond == Second::kGiven) read2 += z2.at[j] * (kBefore ? before : now);
          state[i + j] = now;
        }
      }
      read = sum_of_lanes(read, shares.lanes);
      if (kSecond == Second::kGiven) read2 = sum_of_lanes(read2, shares.lanes);
      if (!writes) continue;
      const auto put = [&](float* out, int64_t step, float value) {
        if (step < 0 || step >= head.length) return;
        out[head.row_of_step(pass.backwards ? head.length - 1 - step : step) * pass.columns + column] = value;
      };
      put(pass.out, begin + f, read);
      if (A::kTwo) put(pass.out2, begin + f - (kSecond == Second::kRead && pass.late), read2);
    }
  }
  if (there && pass.last)
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (row_of(i) < pass.rows) pass.last[of_head + row_of(i) * down + column * along] = state[i];
  if (!writes) return;
  for (int64_t t = head.length; t < pass.sequences.frames; ++t) {
    pass.out[head.row(t) * pass.columns + column] = 0.0f;
    if (A::kTwo) pass.out2[head.row(t) * pass.columns + column] = 0.0f;
  }
}

template <Decay kDecay, Second kSecond, bool kBefore = false>
cudaError_t launch_pass(const Pass& pass, cudaStream_t stream) {
  Shares shares{};
  for (shares.lanes = 1; shares.rows() < pass.rows;) shares.lanes *= 2;
  shares.slices = (pass.columns + shares.columns() - 1) / shares.columns();
  const int bytes = Arrays<kDecay, kSecond>::floats(shares) * static_cast<int>(sizeof(float));
  shares.frames = std::min(kMostFrames, kSharedBytes / bytes);
  const int64_t blocks = pass.sequences.batch * pass.sequences.units * shares.slices;
  return launch(run_pass<kDecay, kSecond, kBefore>, static_cast<unsigned>(blocks), kThreads,
                static_cast<size_t>(bytes) * shares.frames, stream, pass, shares);
}

// A pass without its arrays, with the state [keys, values] or transposed.
template <class Shape>
Pass pass_of(const Shape& shape, const float* g, bool transposed) {
  Pass pass{};
  pass.sequences = shape.sequences;
  pass.rows = static_cast<int>(transposed ? shape.values : shape.keys);
  pass.columns = static_cast<int>(transposed ? shape.keys : shape.values);
  pass.decays = static_cast<int>(shape.decays);
  pass.transposed = transposed;
  pass.g = g;
  return pass;
}

// The gradient of log decays from other gradients: the sum over the columns of what a row of the state and its gradient
// are, times each other, follows from frame to frame,
//
//   d_g[s] = d_g[s+1] + after[s+1] + now[s] - added[s],
//
// where each of these is the sum of one or two products of an array and its gradient, all [T, B, H, rows]. After the
// last frame it is the sum over last and d_last.
struct Products {
  const float *x[2], *dx[2];  // null: there is none
};

struct DecayGradient {
  RtfSequences sequences;
  int rows, columns;
  int decays;  // the width of d_g: rows, or 1 for the sum over the rows
  Products after, now, added;
  const float *last, *d_last;
  float* d_g;
};

__device__ __forceinline__ double sum_at(const Products& products, int64_t at) {
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (products.x[i]) sum += static_cast<double>(products.x[i][at]) * products.dx[i][at];
  return sum;
}

// A warp for each head and, with a decay for each row, for each 32 of its rows. Sums are double, as they are the small
// differences of large ones.
static __global__ void __launch_bounds__(kWarp)
    run_decay_gradient(const __grid_constant__ DecayGradient all, int parts) {
  const HeadFrames head(all.sequences, blockIdx.x / parts);
  const bool one = all.decays == 1;
  const int lane = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) % parts * kWarp + lane;
  const int step = one ? kWarp : all.rows;  // to the next row of this lane
  const int64_t of_head = (head.b * all.sequences.units + head.h) * all.rows * all.columns;
  double sum = 0.0;
  for (int64_t r = first; r < all.rows; r += step)
    for (int64_t at = of_head + r * all.columns; at < of_head + (r + 1) * all.columns; ++at)
      sum += static_cast<double>(all.last[at]) * all.d_last[at];
  for (int64_t s = head.length - 1; s >= 0; --s) {
    const int64_t row = head.row_of_step(s);
    double after = 0.0;
    for (int64_t r = first; r < all.rows; r += step) {
      sum += sum_at(all.now, row * all.rows + r) - sum_at(all.added, row * all.rows + r);
      after += sum_at(all.after, row * all.rows + r);
    }
    double here = sum;
    if (one)
      for (int half = kWarp / 2; half > 0; half /= 2) here += __shfl_xor_sync(kAllLanes, here, half);
    if (one ? lane == 0 : first < all.rows) all.d_g[row * all.decays + (one ? 0 : first)] = static_cast<float>(here);
    sum += after;
  }
  if (one ? lane == 0 : first < all.rows)
    for (int64_t t = head.length; t < all.sequences.frames; ++t)
      all.d_g[head.row(t) * all.decays + (one ? 0 : first)] = 0.0f;
}

inline cudaError_t launch_decay_gradient(const DecayGradient& all, cudaStream_t stream) {
  const int parts = all.decays == 1 ? 1 : (all.rows + kWarp - 1) / kWarp;
  const int64_t blocks = all.sequences.batch * all.sequences.units * parts;
  return launch(run_decay_gradient, static_cast<unsigned>(blocks), kWarp, 0, stream, all, parts);
}

// The text of an error in the sizes of a call, or null.
inline const char* check(int64_t keys, int64_t values) {
  static_assert(kMostRows == 512, "the text says so");
  return std::max(keys, values) > kMostRows ? "a head has more than 512 keys or values" : nullptr;
}

// The text of the first error of several launches, or null.
inline const char* text_of(std::initializer_list<cudaError_t> errors) {
  for (const cudaError_t error : errors)
    if (error != cudaSuccess) return cudaGetErrorString(error);
  return nullptr;
}

}  // namespace matrix_state
}  // namespace rtf
