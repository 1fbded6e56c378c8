// Tiles of attention on a GPU: 64 rows of 64 numbers in shared memory, and their products on the tensor cores.
//
// A block has four warps, and each of them 16 rows of a product of 64 x 64 in registers, as mma lays them out. Those of
// one product are the left side of the next one without a move: the numbers that a product adds up may come in any
// order that both sides have, so slot t of mma stands for column 2 t, and slot t + 4 for column 2 t + 1.
#pragma once

#include "../common/both.h"
#include "../common/cuda/recurrence_numbers.h"
#include "attention.h"

namespace rtf {

constexpr int kTile = 64, kWarps = 4, kThreads = kWarps * kWarp, kWarpRows = kTile / kWarps;
constexpr int kRow = kTile + 4;  // without conflicts of banks, along rows and, two rows at a time, along columns
constexpr int kTileSize = kTile * kRow;
constexpr int kHalf = kTile / 2;

// 16 rows of 64 numbers, a warp's. With g = lane / 4 and t = lane % 4, number [h][n][i] of a lane is in row
// g + 8 (i / 2) and column 32 h + 8 n + 2 t + i % 2.
using Sums = float[2][4][4];

__device__ __forceinline__ int lane_of() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int warp_of() { return static_cast<int>(threadIdx.x) / kWarp; }

// One of this lane's numbers: its place among them, and in the tile.
struct Place {
  int h, n, i;
  int row, column;

  __device__ __forceinline__ float& of(Sums& sums) const { return sums[h][n][i]; }
  // Which of the two rows of a lane it is in.
  __device__ __forceinline__ int side() const { return i / 2; }
};

template <class Function>
__device__ __forceinline__ void for_places(const Function& function) {
  const int row = warp_of() * kWarpRows + lane_of() / 4, column = lane_of() % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) function(Place{h, n, i, row + i / 2 * 8, kHalf * h + 8 * n + column + i % 2});
}

__device__ __forceinline__ void clear(Sums& sums) {
  for_places([&](const Place& place) { place.of(sums) = 0.0f; });
}

// The sum of the numbers that the four lanes of a row have.
__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// Numbers of a part of rows that are that long.
__device__ __forceinline__ int numbers_of(int64_t size, int part) {
  return static_cast<int>(min(static_cast<long long>(size) - int64_t(part) * kTile, static_cast<long long>(kTile)));
}
RTF_BOTH inline int parts_of(int64_t size) { return static_cast<int>((size + kTile - 1) / kTile); }

// Vectors of a head in global memory, and the tile where 64 numbers of 64 of them are at a time: zeros where there are
// none.
class Rows {
 public:
  // count: how many there are; others are not read.
  __device__ Rows(const float* data, int64_t step, int64_t count, int64_t size, float* tile)
      : data_(data), step_(step), count_(count), size_(size), tile_(tile) {
    aligned_ = (reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(step) * sizeof(float)) % 16 == 0;
  }

  __device__ __forceinline__ int parts() const { return parts_of(size_); }
  __device__ __forceinline__ int numbers(int part) const { return numbers_of(size_, part); }
  __device__ __forceinline__ float* tile() const { return tile_; }

  // Starts to fill the tile with rows first .. of a part. To be awaited by tiles_are_there.
  __device__ void load(int64_t first, int part) const {
    const int n = numbers(part), width = n <= kHalf ? kHalf : kTile;
    const float* from = data_ + int64_t(part) * kTile;
    if (aligned_) {
      for (int i = static_cast<int>(threadIdx.x); i < kTile * (width / 4); i += kThreads) {
        const int row = i / (width / 4), column = i % (width / 4) * 4;
        const bool there = first + row < count_ && column < n;
        cp_async16(tile_ + row * kRow + column, there ? from + (first + row) * step_ + column : data_,
                   there ? static_cast<int>(sizeof(float)) * min(4, n - column) : 0);
      }
    } else {
      for (int i = static_cast<int>(threadIdx.x); i < kTile * width; i += kThreads) {
        const int row = i / width, column = i % width;
        const bool there = first + row < count_ && column < n;
        tile_[row * kRow + column] = there ? from[(first + row) * step_ + column] : 0.0f;
      }
    }
  }

  // The same ahead of a product_of_rows, which loads the parts of rows with several of them itself.
  __device__ __forceinline__ void prefetch(int64_t first) const {
    if (parts() == 1) load(first, 0);
  }

 private:
  const float* data_;
  int64_t step_, count_, size_;
  float* tile_;
  bool aligned_;
};

// Floats that are rounded to bfloat16 in front of a product, those of slots t and t + 4 as a pair. In memory they stay
// floats: it is read as fast as for TF32, which takes twice as long on the tensor cores.
struct FloatBfloat16 {
  static __device__ __forceinline__ uint32_t prepared(uint32_t word) { return word; }

  // sums[n] += a b[n] for the first `columns` of kColumns
  template <int kColumns>
  static __device__ __forceinline__ void multiply(float (&sums)[kColumns][4], const uint32_t* a,
                                                  const uint32_t (&b)[kColumns][2], int columns) {
    const uint32_t rows[2] = {pair(a[0], a[2]), pair(a[1], a[3])};
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
      if (n < columns) mma_m16n8k8_bf16(sums[n], rows, pair(b[n][0], b[n][1]));
  }

  static __device__ __forceinline__ uint32_t pair(uint32_t first, uint32_t second) {
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(__uint_as_float(first), __uint_as_float(second));
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    return bits;
  }
};

// A barrier: what all threads have begun to load is there.
__device__ __forceinline__ void tiles_are_there() {
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
}

// sums += left right^T, of 16 rows and 64 rows with n numbers each.
template <class Math>
__device__ __forceinline__ void multiply_rows(Sums& sums, const float* left, const float* right, int n) {
  const int g = lane_of() / 4, t = lane_of() % 4;
  const float *a_row = left + g * kRow + t, *b_row = right + g * kRow + t;
  for (int k = 0; k < n; k += 8) {
    const uint32_t a[4] = {
        Math::prepared(__float_as_uint(a_row[k])), Math::prepared(__float_as_uint(a_row[8 * kRow + k])),
        Math::prepared(__float_as_uint(a_row[k + 4])), Math::prepared(__float_as_uint(a_row[8 * kRow + k + 4]))};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t b[4][2];
#pragma unroll
      for (int column = 0; column < 4; ++column)
#pragma unroll
        for (int i = 0; i < 2; ++i) b[column][i] = __float_as_uint(b_row[(kHalf * h + 8 * column) * kRow + k + 4 * i]);
      Math::multiply(sums[h], a, b, 4);
    }
  }
}

// sums += weights right, with n rows on the right, and as many columns (those of a half may be more than asked for).
template <class Math>
__device__ __forceinline__ void multiply_columns(Sums& sums, const Sums& weights, const float* right, int n,
                                                 int columns) {
  const int g = lane_of() / 4, t = lane_of() % 4;
  const float* from = right + 2 * t * kRow + g;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    if (8 * k >= n) continue;
    const float(&w)[4] = weights[k / 4][k % 4];
    const uint32_t a[4] = {Math::prepared(__float_as_uint(w[0])), Math::prepared(__float_as_uint(w[2])),
                           Math::prepared(__float_as_uint(w[1])), Math::prepared(__float_as_uint(w[3]))};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (kHalf * h >= columns) continue;
      uint32_t b[4][2];
#pragma unroll
      for (int column = 0; column < 4; ++column)
#pragma unroll
        for (int i = 0; i < 2; ++i) b[column][i] = __float_as_uint(from[(8 * k + i) * kRow + kHalf * h + 8 * column]);
      Math::multiply(sums[h], a, b, 4);
    }
  }
}

// sums = left right^T of 64 rows each, over all of their parts. Part `last` is the last one, which stays in the tiles.
// Rows with one part have to be there.
template <class Math>
__device__ __forceinline__ void product_of_rows(Sums& sums, const Rows& left, int64_t first_left, const Rows& right,
                                                int64_t first_right, int last) {
  clear(sums);
  const int parts = left.parts();
  for (int i = 1; i <= parts; ++i) {
    const int part = (last + i) % parts;
    if (parts > 1) {
      __syncthreads();
      left.load(first_left, part);
      right.load(first_right, part);
      tiles_are_there();
    }
    multiply_rows<Math>(sums, left.tile() + warp_of() * kWarpRows * kRow, right.tile(), left.numbers(part));
  }
}

}  // namespace rtf
