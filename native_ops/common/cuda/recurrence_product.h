// The product of a recurrence: the rows of a block's own weights, which stay on the chip, times the exchanged states.
//
// D [rows of weights, sequences] = W [rows, k] X^T [k, sequences] by mma, so that a tile has only 8 sequences. Weights
// are fragments A; X [sequences, k] is row-major and goes from L2 straight into the registers of fragments B. The order
// of k within a product is arbitrary as long as A and B agree; it is chosen so that a lane reads 16 contiguous bytes of
// a row:
//
//   k is cut into chunks of 64 bytes; lane = 4 g + t has the words 4 t .. 4 t + 3 of the chunk in row g, of which words
//   0, 1 form fragment B of the first half of the chunk, words 2, 3 that of the second half.
//
// The 8 warps of a block share the chunks (warp w has w, w + 8, ...), so that each number of X is read once per block,
// and the sums of the warps are added in shared memory. Of a warp's chunks the first kHeld stay in registers, the next
// ones in shared memory, and the rest is read from L2 in each product.
#pragma once

#include "recurrence_numbers.h"

namespace rtf {
namespace recurrence {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kColumns = 2;              // tiles of 8 sequences per pass
constexpr int kPassRows = 8 * kColumns;  // sequences per pass
constexpr int kChunkBytes = 64;
constexpr int kFragmentVectors = 2 * kWarp;  // int4 in a fragment A of a chunk: two halves, 32 lanes

// Unpacked weights: row (unit, gate), column k of W is data[unit * unit_stride + gate * gate_stride + k * k_stride].
template <class Element>
struct WeightView {
  const Element* data;
  int64_t unit_stride, gate_stride, k_stride;
  int units, gates, k;
};

// Sequences that a pass reads: at is the offset of this lane in chunk 0 of the first tile, in int4.
struct PassRows {
  const int4* at;
  int columns;  // tiles, 0 .. kColumns
};

// Chunks of X that are in flight or in use; chunk i of a warp is in slot i % kRing.
constexpr int kRing = 4;
using Ring = int4[kRing][kColumns];

// Packs fragments: to [unit tiles, chunks, row tiles, half, lane] int4. Row r of a unit tile is unit r / gates, gate
// r % gates.
template <class Math, int kUnits, int kTiles>
__global__ void pack_weights(WeightView<typename Math::Element> from, int chunks, int4* to) {
  using Element = typename Math::Element;
  const int index = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x), tile = static_cast<int>(blockIdx.x);
  const int vectors = chunks * kTiles * kFragmentVectors;
  if (index >= vectors) return;
  constexpr int kChunk = kChunkBytes / static_cast<int>(sizeof(Element));
  const int lane = index % kWarp, half = index / kWarp % 2, m = index / kFragmentVectors % kTiles;
  const int chunk = index / (kFragmentVectors * kTiles);
  uint32_t words[4];
  for (int i = 0; i < 4; ++i) {
    const int row = 16 * m + lane / 4 + 8 * (i % 2), unit = tile * kUnits + row / from.gates, gate = row % from.gates;
    const int k = chunk * kChunk + lane % 4 * (kChunk / 4) + (2 * half + i / 2) * Math::kPerWord;
    Element values[2];
    for (int e = 0; e < Math::kPerWord; ++e) {
      put(&values[e], 0.0f);
      if (row < kUnits * from.gates && unit < from.units && k + e < from.k)
        values[e] = from.data[unit * from.unit_stride + gate * from.gate_stride + (k + e) * from.k_stride];
    }
    words[i] = Math::prepared(Math::word(values));
  }
  const int4 vector = make_int4(static_cast<int>(words[0]), static_cast<int>(words[1]), static_cast<int>(words[2]),
                                static_cast<int>(words[3]));
  to[static_cast<int64_t>(tile) * vectors + index] = vector;
}

// One warp's part of the products with the weights of one block.
template <class Math, int kTiles, int kHeld>
class Product {
 public:
  static_assert(kHeld % kRing == 0, "each part of the weights begins with slot 0");
  using Sums = float[kTiles][kColumns][4];

  // packed: the fragments of the block's unit tile. n_shared: chunks per warp in shared memory, a multiple of kRing;
  // shared has room for kWarps * n_shared * kTiles * kFragmentVectors int4. A lane reads only what it wrote itself.
  __device__ void hold(const int4* packed, int chunks, int row_vectors, int n_shared, int4* shared) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    warp_ = static_cast<int>(threadIdx.x) / kWarp;
    count_ = (chunks - warp_ + kWarps - 1) / kWarps;
    row_vectors_ = row_vectors;
    n_shared_ = n_shared;
    packed_ = packed + warp_ * kTiles * kFragmentVectors + lane;
    shared_ = shared + warp_ * kTiles * kFragmentVectors + lane;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (i < count_) read_weights(held_[i], packed_ + i * kStride);
    for (int i = kHeld; i < min(count_, kHeld + n_shared); ++i)
      for (int v = 0; v < 2 * kTiles; ++v)
        shared_[(i - kHeld) * kStride + v * kWarp] = packed_[i * kStride + v * kWarp];
  }

  // The sequences row .. of x [rows, row_vectors int4], columns tiles of them.
  __device__ PassRows rows(const void* x, int row, int columns) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int4* first = static_cast<const int4*>(x) + static_cast<int64_t>(row + lane / 4) * row_vectors_;
    return PassRows{first + lane % 4, columns};
  }

  // Call before the first pass over an x.
  __device__ void begin(Ring& x, const PassRows& rows) const {
#pragma unroll
    for (int slot = 0; slot < kRing; ++slot) read(x[slot], rows, slot);
  }

  // This warp's part of the product with the rows of `here`; on return those of `after` are in flight.
  __device__ void pass(Sums& sums, Ring& x, const PassRows& here, const PassRows& after) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (i < count_) {
        multiply(sums, held_[i], x[i % kRing], here.columns);
        refill(x, i % kRing, i, here, after);
      }
    const int shared_end = min(count_, kHeld + n_shared_);
    stream(sums, x, kHeld, shared_end, shared_, here, after);
    stream(sums, x, kHeld + n_shared_, count_, packed_ + (kHeld + n_shared_) * kStride, here, after);
  }

  // Writes the sums of this warp to partial [kWarps, kPassRows, kPartialRow].
  static constexpr int kPartialRow =
      16 * kTiles + 4;  // avoids bank conflicts of the writes here and of the reads of gates

  __device__ void share(const Sums& sums, int columns, float* partial) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    float* mine = partial + (warp_ * kPassRows + lane % 4 * 2) * kPartialRow + lane / 4;
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
      if (n < columns)
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
#pragma unroll
          for (int i = 0; i < 4; ++i) mine[(8 * n + i % 2) * kPartialRow + 16 * m + 8 * (i / 2)] = sums[m][n][i];
  }

 private:
  static constexpr int kStride = kWarps * kTiles * kFragmentVectors;  // from one chunk of a warp to its next one
  using Weights = uint32_t[kTiles][8];

  static __device__ __forceinline__ void read_weights(Weights& to, const int4* from) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int4 vector = from[(2 * m + half) * kWarp];
        to[m][4 * half] = static_cast<uint32_t>(vector.x);
        to[m][4 * half + 1] = static_cast<uint32_t>(vector.y);
        to[m][4 * half + 2] = static_cast<uint32_t>(vector.z);
        to[m][4 * half + 3] = static_cast<uint32_t>(vector.w);
      }
  }

  // Other blocks have written x since this one last read it: bypass L1.
  __device__ __forceinline__ void read(int4 (&x)[kColumns], PassRows rows, int i) const {
    if (i >= count_) return;
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
      if (n < rows.columns) x[n] = __ldcg(rows.at + 8 * n * row_vectors_ + (i * kWarps + warp_) * 4);
  }

  // After chunk i of `here` the slot is free for a later one, or for `after`.
  __device__ __forceinline__ void refill(Ring& x, int slot, int i, const PassRows& here, const PassRows& after) const {
    const bool more = i + kRing < count_;
    const PassRows rows{more ? here.at : after.at,
                        more ? here.columns : after.columns};  // the address of neither is taken
    read(x[slot], rows, more ? i + kRing : slot);
  }

  // Chunks first .. end - 1 with weights from memory.
  __device__ __forceinline__ void stream(Sums& sums, Ring& x, int first, int end, const int4* weights,
                                         const PassRows& here, const PassRows& after) const {
    for (int i = first; i < end; i += kRing, weights += kRing * kStride)
#pragma unroll
      for (int slot = 0; slot < kRing; ++slot)
        if (i + slot < end) {
          Weights fragment;
          read_weights(fragment, weights + slot * kStride);
          multiply(sums, fragment, x[slot], here.columns);
          refill(x, slot, i + slot, here, after);
        }
  }

  static __device__ __forceinline__ void multiply(Sums& sums, const Weights& weights, const int4 (&x)[kColumns],
                                                  int columns) {
    uint32_t b[2][kColumns][2];
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      b[0][n][0] = static_cast<uint32_t>(x[n].x);
      b[0][n][1] = static_cast<uint32_t>(x[n].y);
      b[1][n][0] = static_cast<uint32_t>(x[n].z);
      b[1][n][1] = static_cast<uint32_t>(x[n].w);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int m = 0; m < kTiles; ++m) Math::multiply(sums[m], weights[m] + 4 * half, b[half], columns);
  }

  Weights held_[kHeld > 0 ? kHeld : 1];
  const int4* packed_;
  int4* shared_;
  int warp_, count_, row_vectors_, n_shared_;
};

}  // namespace recurrence
}  // namespace rtf
