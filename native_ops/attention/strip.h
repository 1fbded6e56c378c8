// The weights of a block of queries over all keys: what forward and backward pass share.
#pragma once

#include <cmath>
#include <limits>

#include "../common/philox.h"
#include "attention.h"
#include "products.h"

namespace rtf {

inline const float* at(const RtfVectors& x, int64_t b, int64_t t, int64_t head) {
  return x.data + b * x.batch_step + t * x.time_step + head * x.head_step;
}
inline float* mutable_at(const RtfVectors& x, int64_t b, int64_t t, int64_t head) {
  return x.data + b * x.batch_step + t * x.time_step + head * x.head_step;
}

constexpr int64_t kMaxBlock = 48;

// Sizes in whole vectors.
struct Sizes {
  explicit Sizes(const RtfAttention& s)
      : keys(whole_vectors(s.keys)),
        key(whole_vectors(s.key_size)),
        value(whole_vectors(s.value_size)),
        distances(s.table ? whole_vectors(2 * s.clipping + 1) : 0),
        // a strip of at most 256 KB, for the cache of a core
        block(std::max<int64_t>(2 * kMaxRows, std::min<int64_t>(kMaxBlock, 65536 / (keys + 1) / kMaxRows * kMaxRows))) {
  }

  const int64_t keys, key, value, distances, block;
};

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
struct Packed {
  float* q;         // [block, key]
  float* keys;      // columns of [key_size, keys]
  float* table;     // columns of [key_size, distances]
  float* distance;  // [block, distances]: the energies by distance
  float* strip;     // [block, keys]

  Packed(const RtfAttention& s, const Sizes& sizes, Arena& arena)
      : q(arena.take(sizes.block * sizes.key)),
        keys(arena.take(s.key_size * sizes.keys)),
        table(arena.take(s.key_size * sizes.distances)),
        distance(arena.take(sizes.block * sizes.distances)),
        strip(arena.take(sizes.block * sizes.keys)) {}
};

// The keys of query t whose distances are not clipped; those before them have the smallest one, those after them the
// largest one.
inline Range near_keys(const RtfAttention& s, int64_t t, int64_t n) {
  return {std::min(n, std::max<int64_t>(0, t - s.clipping)), std::min(n, t + s.clipping + 1)};
}

// The energies of a block of queries in packed.strip; packed.q has these queries, scaled.
inline void energies(const Head& h, Range queries, const Packed& packed) {
  const RtfAttention& s = h.shape;
  const int64_t keys = h.keys_of(queries), step = h.sizes.keys;
  const Left q{packed.q, h.sizes.key, 1};
  multiply(q, queries.size(), Right{packed.keys, s.key_size, whole_vectors(keys), whole_vectors(h.n_keys())},
           packed.strip, step, false);
  if (!s.table) return;
  const int64_t distances = h.sizes.distances;
  multiply(q, queries.size(), Right{packed.table, s.key_size, distances, distances}, packed.distance, distances, false);
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

inline void pack_head(const Head& h, const RtfVectors& k, const Packed& packed) {
  pack_columns(at(k, h.b, 0, h.head), k.time_step, h.n_keys(), h.shape.key_size, packed.keys);
}

inline void pack_table(const RtfAttention& s, const Packed& packed) {
  if (s.table) pack_columns(s.table, s.key_size, 2 * s.clipping + 1, s.key_size, packed.table);
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
