// The weights of a block of queries over all keys: what forward and backward pass share.
#pragma once

#include <cmath>
#include <limits>

#include "../common/philox.h"
#include "attention.h"
#include "blocks.h"

namespace rtf {

inline const float* at(const RtfVectors& x, int64_t b, int64_t t, int64_t head) {
  return x.data + b * x.batch_step + t * x.time_step + head * x.head_step;
}
inline float* mutable_at(const RtfVectors& x, int64_t b, int64_t t, int64_t head) {
  return x.data + b * x.batch_step + t * x.time_step + head * x.head_step;
}

// Prefetches the vectors of a head, which are too far apart for the prefetcher of a CPU.
inline void prefetch(const RtfVectors& x, int64_t b, int64_t head, Range frames, int64_t size) {
  constexpr int64_t kLine = 16;  // floats
  for (int64_t t = frames.begin; t < frames.end; ++t)
    for (int64_t i = 0; i < size; i += kLine) prefetch_to_read(at(x, b, t, head) + i);
}

// One head of one sequence.
struct Head {
  const RtfAttention& shape;
  const Sizes& sizes;
  int64_t b, head;

  int64_t n_keys() const { return shape.lengths ? shape.lengths[b] : shape.keys; }
  // Keys that query t sees, and that some of the queries of a block see.
  int64_t keys_of(int64_t t) const { return shape.causal ? std::min(n_keys(), t + 1) : n_keys(); }
  int64_t keys_of(Range queries) const { return keys_of(queries.end - 1); }
  int64_t row(int64_t t) const { return (b * shape.heads + head) * shape.queries + t; }
};

// What the energies of a head need.
template <typename Products>
struct Packed {
  Products products;
  float* q;                            // [block, key]
  typename Products::AsColumns keys;   // [key_size, keys]
  typename Products::AsColumns table;  // [key_size, distances]
  float* distance;                     // [block, distances]: the energies by distance
  float* strip;                        // [block, keys]

  Packed(const RtfAttention& s, const Sizes& sizes, Arena& arena)
      : products(arena, sizes),
        q(arena.take(sizes.block * sizes.key)),
        keys(arena, s.key_size, sizes.keys),
        table(arena, s.key_size, sizes.distances),
        distance(arena.take(sizes.block * sizes.distances)),
        strip(arena.take(sizes.block * sizes.keys)) {}

  void pack(const Head& h, const RtfVectors& k) {
    const RtfAttention& s = h.shape;
    keys.pack(at(k, h.b, 0, h.head), k.time_step, h.n_keys());
    if (s.table) table.pack(s.table, s.key_size, 2 * s.clipping + 1);
  }
};

// The keys of query t whose distances are not clipped; those before them have the smallest one, those after them the
// largest one.
inline Range near_keys(const RtfAttention& s, int64_t t, int64_t n) {
  return {std::min(n, std::max<int64_t>(0, t - s.clipping)), std::min(n, t + s.clipping + 1)};
}

// The energies of a block of queries in packed.strip.
template <typename Products>
void energies(const Head& h, Range queries, const RtfVectors& from, const Packed<Products>& packed) {
  const RtfAttention& s = h.shape;
  const int64_t keys = h.keys_of(queries), step = h.sizes.keys, distances = h.sizes.distances;
  pack_rows(at(from, h.b, queries.begin, h.head), from.time_step, queries.size(), s.key_size, s.scale, packed.q,
            h.sizes.key);
  const Block q{packed.q, h.sizes.key, queries.size(), s.key_size};
  packed.products.multiply(q, packed.keys, keys, packed.strip, step);
  if (!s.table) return;
  packed.products.multiply(q, packed.table, 2 * s.clipping + 1, packed.distance, distances);
  for (int64_t t = queries.begin; t < queries.end; ++t) {
    float* row = packed.strip + (t - queries.begin) * step;
    const float* by_distance = packed.distance + (t - queries.begin) * distances;
    const Range near = near_keys(s, t, keys);
    for (int64_t i = 0; i < near.begin; ++i) row[i] += by_distance[0];
    const float* own = by_distance + s.clipping - t;
    for (int64_t i = near.begin; i < near.end; ++i) row[i] += own[i];
    for (int64_t i = near.end; i < keys; ++i) row[i] += by_distance[2 * s.clipping];
  }
}

// The factors that dropout has for the weights, of one query after the other.
class Factors {
 public:
  Factors(const RtfAttention& s, const Sizes& sizes, Arena& arena)
      : rate_(s.dropout),
        keys_(s.keys),
        dropout_(PhiloxState{s.seed_key, {s.seed_counter[0], s.seed_counter[1]}}, s.dropout, 1.0f / (1.0f - s.dropout)),
        buffer_(arena.take(sizes.keys + 2 * Dropout::kBlock)) {}

  // function(first of kLanes keys, factors) for the first n keys of a query.
  template <typename Function>
  void for_keys(int64_t row, int64_t n, const Function& function) const {
    if (rate_ == 0) {
      const Vec one = splat(1.0f);
      for (int64_t i = 0; i < n; i += kLanes) function(i, one);
    } else {
      const float* factors = dropout_.fill(row * keys_, n, buffer_);
      for (int64_t i = 0; i < n; i += kLanes) function(i, load(factors + i));
    }
  }

 private:
  float rate_;
  int64_t keys_;
  Dropout dropout_;
  float* buffer_;
};

}  // namespace rtf
