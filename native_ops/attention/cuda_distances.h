// The part of attention on a GPU that depends on distances: products with the table, and launches for as many heads at
// a time as the memory for them suffices.
#pragma once

#include <algorithm>

#include "cuda_energies.h"

namespace rtf {

// Floats of the energies by distance of the heads of a launch: 128 MB, or those of one head.
constexpr int64_t kMostByDistance = int64_t(1) << 25;

inline int64_t heads_of_launch(const RtfAttention& s) {
  const int64_t all = s.batch * s.heads, of_head = std::max<int64_t>(1, s.queries * distances_of(s));
  return s.table ? std::max<int64_t>(1, std::min(all, kMostByDistance / of_head)) : all;
}
inline int64_t size_by_distance(const RtfAttention& s) {
  return s.table ? heads_of_launch(s) * s.queries * distances_of(s) : 0;
}

// scale q . table, of a tile of queries and one of distances.
template <class Math>
__global__ void __launch_bounds__(kThreads, 3) energies_by_distance(RtfAttention s, RtfVectors q, ByDistance launch) {
  float* tiles = dynamic_shared<float>();
  const int64_t distances = distances_of(s), columns = tiles_of(distances);
  const BlockHead head(s, launch, tiles_of(s.queries) * columns);
  const int64_t query = head.tile / columns * kTile, distance = head.tile % columns * kTile;
  const Rows queries = head.rows(q, s.queries, s.key_size, tiles);
  const Rows table(s.table, s.key_size, distances, s.key_size, tiles + kTileSize);
  queries.prefetch(query);
  table.prefetch(distance);
  tiles_are_there();
  Sums sums;
  product_of_rows<Math>(sums, queries, query, table, distance, 0);
  float* to = launch.energies + head.in_launch * s.queries * distances;
  for_places([&](const Place& place) {
    const int64_t row = query + place.row, column = distance + place.column;
    if (row < s.queries && column < distances) to[row * distances + column] = s.scale * place.of(sums);
  });
}

// From the gradients of the energies by distance: kTable: those of the table, for a tile of distances; else what they
// add to those of the queries, for a tile of these. A block has 64 numbers of the vectors.
template <class Math, bool kTable>
__global__ void __launch_bounds__(kThreads, 3)
    gradients_by_distance(RtfAttention s, RtfVectors q, RtfVectors dq, float* d_tables, ByDistance launch) {
  const int64_t distances = distances_of(s), rows = kTable ? distances : s.queries;
  const int64_t terms = kTable ? s.queries : distances;
  const int part = static_cast<int>(blockIdx.y);
  const BlockHead head(s, launch, tiles_of(rows));
  float* tile = dynamic_shared<float>();
  const Rows vectors =
      kTable ? head.rows(q, terms, s.key_size, tile) : Rows(s.table, s.key_size, terms, s.key_size, tile);
  const float* gradients = launch.gradients + head.in_launch * s.queries * distances;
  const int64_t first_row = int64_t(head.tile) * kTile;
  Sums sums, weights;
  clear(sums);
  for (int64_t first = 0; first < terms; first += kTile) {
    __syncthreads();
    vectors.load(first, part);
    for_places([&](const Place& place) {
      const int64_t row = first_row + place.row, term = first + place.column;
      const int64_t at = kTable ? term * distances + row : row * distances + term;
      place.of(weights) = row < rows && term < terms ? gradients[at] : 0.0f;
    });
    tiles_are_there();
    multiply_columns<Math>(sums, weights, tile, static_cast<int>(min(terms - first, int64_t(kTile))),
                           vectors.numbers(part));
  }
  for_places([&](const Place& place) {
    const int64_t row = first_row + place.row, at = int64_t(part) * kTile + place.column;
    if (row >= rows || at >= s.key_size) return;
    if (kTable)
      d_tables[((head.b * s.heads + head.head) * distances + row) * s.key_size + at] = s.scale * place.of(sums);
    else
      head.at(dq, row)[at] += s.scale * place.of(sums);
  });
}

// Whether kernels can count queries, keys, distances and their tiles by int.
inline bool is_countable(const RtfAttention& s) {
  const int64_t most = 0x7fffffff - kTile;
  return s.keys <= most && distances_of(s) <= most && s.key_size <= most && s.value_size <= most &&
         s.batch * s.heads * s.queries <= most;
}

// Calls function(ByDistance) for all heads, as many at a time as there is scratch memory for.
template <class Function>
cudaError_t for_launches(const RtfAttention& s, float* scratch, const Function& function) {
  const int64_t all = s.batch * s.heads, most = heads_of_launch(s);
  cudaError_t error = is_countable(s) ? cudaSuccess : cudaErrorInvalidValue;
  for (int64_t first = 0; first < all && error == cudaSuccess; first += most)
    error = function(ByDistance{s.table ? scratch : nullptr, s.table ? scratch + size_by_distance(s) : nullptr, first,
                                std::min(most, all - first)});
  return error;
}

// The launch of a kernel with some blocks for each head and, each with those, one for each part of vectors; none if
// there is nothing to do.
template <class... P, class... A>
cudaError_t launch_heads(void (*kernel)(P...), const ByDistance& heads, int64_t blocks, int parts, size_t shared,
                         cudaStream_t stream, A&&... args) {
  if (heads.heads * blocks == 0) return cudaSuccess;
  if (heads.heads * blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  const dim3 grid(static_cast<unsigned>(heads.heads * blocks), static_cast<unsigned>(parts));
  return launch(kernel, grid, kThreads, shared, stream, static_cast<A&&>(args)...);
}

template <class Math>
cudaError_t launch_energies_by_distance(const RtfAttention& s, const RtfVectors& q, const ByDistance& heads,
                                        cudaStream_t stream) {
  if (!s.table) return cudaSuccess;
  return launch_heads(energies_by_distance<Math>, heads, tiles_of(s.queries) * tiles_of(distances_of(s)), 1,
                      2 * kTileSize * sizeof(float), stream, s, q, heads);
}

// function(FloatBfloat16) if factors are rounded, else FloatSplit or FloatTf32 by RtfNumbers; the text of its error.
template <class Function>
const char* with_numbers(const RtfAttention& s, int numbers, const Function& function) {
  cudaError_t error;
  switch (s.rounded ? RTF_BFLOAT16 : numbers) {
    case RTF_FLOAT: error = function(recurrence::FloatSplit()); break;
    case RTF_FLOAT_TF32: error = function(recurrence::FloatTf32()); break;
    case RTF_BFLOAT16: error = function(FloatBfloat16()); break;
    default: return "attention: the products have to be RTF_FLOAT or RTF_FLOAT_TF32";
  }
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace rtf
