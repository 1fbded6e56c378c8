// Blocks of queries, and what the kernels need of the products of a block.
//
// Products, such as VectorProducts, have: kSizes; Ready, which exists in a thread while it multiplies; AsColumns and
// AsRows, a right factor that pack(from, step, n) makes of vectors [n, size], with n up to what the constructor was
// told; Sums [n, size], with clear() and write(n, to, step); and
//
//   multiply(left, as_columns, n, to, step)     to = left x the first n columns
//   multiply(left, as_rows, to, step, add)      to = or += left x the first rows, as many as left has columns
//   add(a, b, sums)                             sums += a^T b
//   factor(numbers)                             what they are as those of a factor
//
// `to` has space for rows and columns in multiples of kSizes.step, into which anything may be written.
#pragma once

#include <algorithm>

#include "../common/arena.h"
#include "attention.h"

namespace rtf {

// A matrix of floats whose rows are `step` apart.
struct Block {
  const float* data;
  int64_t step, rows, columns;
};

// Arrays have sizes in multiples of `step`; a block has least .. most queries, a multiple of `queries`.
struct BlockSizes {
  int64_t step, queries, least, most;
};

// Sizes of the arrays of a thread.
struct Sizes {
  Sizes(const RtfAttention& s, const BlockSizes& of)
      : keys(round_up(s.keys, of.step)),
        key(round_up(s.key_size, of.step)),
        value(round_up(s.value_size, of.step)),
        distances(s.table ? round_up(2 * s.clipping + 1, of.step) : 0),
        // a strip of at most 256 KB, for the cache of a core
        block(std::max(of.least, std::min(of.most, 65536 / (keys + 1) / of.queries * of.queries))) {}

  const int64_t keys, key, value, distances, block;
};

// Copies vectors [n, size] to rows, times a factor, with zeros up to a whole vector.
inline void pack_rows(const float* from, int64_t step, int64_t n, int64_t size, float factor, float* to,
                      int64_t to_step) {
  for (int64_t t = 0; t < n; ++t, from += step, to += to_step)
    by_vectors(size, [&](int64_t at, auto whole, int lanes) {
      store(to + at, splat(factor) * load_n<decltype(whole)::value>(from + at, lanes));
    });
}

inline void scale_rows(const float* from, int64_t from_step, int64_t n, int64_t size, float factor, float* to,
                       int64_t to_step) {
  for (int64_t t = 0; t < n; ++t)
    for (int64_t i = 0; i < size; ++i) to[t * to_step + i] = factor * from[t * from_step + i];
}

}  // namespace rtf
