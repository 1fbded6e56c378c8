// What the kernels of attention on a GPU know of a tile of queries x keys: its energies, which keys are seen, and what
// dropout keeps.
#pragma once

#include "../common/cuda/philox.h"
#include "cuda_tiles.h"

namespace rtf {

// Energies by distance of some heads [heads, queries, distances], and their gradients: the products of all queries with
// the table, which a kernel computes ahead. The heads of a batch are counted in [batch, heads].
struct ByDistance {
  float *energies, *gradients;  // null without a table
  int64_t first_head, heads;    // those of this launch
};

RTF_BOTH inline int64_t distances_of(const RtfAttention& s) { return s.table ? 2 * s.clipping + 1 : 0; }
RTF_BOTH inline int64_t tiles_of(int64_t rows) { return (rows + kTile - 1) / kTile; }

// The head of a block. Blocks are numbered in [heads of the launch, blocks of a head].
struct BlockHead {
  int64_t in_launch, b, head;
  int tile, keys;  // keys: of the sequence

  __device__ BlockHead(const RtfAttention& s, const ByDistance& launch, int64_t blocks) {
    in_launch = blockIdx.x / blocks;
    tile = static_cast<int>(blockIdx.x % blocks);
    b = (launch.first_head + in_launch) / s.heads;
    head = (launch.first_head + in_launch) % s.heads;
    const int64_t given = s.lengths ? s.lengths[b] : s.keys;  // the host can't check it
    keys = static_cast<int>(given < 0 ? 0 : given < s.keys ? given : s.keys);
  }

  // Of arrays [batch, heads, queries].
  __device__ __forceinline__ int64_t row(const RtfAttention& s, int64_t query) const {
    return (b * s.heads + head) * s.queries + query;
  }
  __device__ __forceinline__ float* at(const RtfVectors& x, int64_t t) const {
    return x.data + b * x.batch_step + t * x.time_step + head * x.head_step;
  }
  __device__ __forceinline__ Rows rows(const RtfVectors& x, int64_t count, int64_t size, float* tile) const {
    return Rows(at(x, 0), x.time_step, count, size, tile);
  }
};

// The energies of a head.
class Energies {
 public:
  __device__ Energies(const RtfAttention& s, const BlockHead& head, const ByDistance& launch)
      : keys_(head.keys),
        queries_(static_cast<int>(s.queries)),
        clipping_(static_cast<int>(s.clipping)),
        scale_(s.scale),
        causal_(s.causal != 0) {
    by_distance_ = s.table ? launch.energies + head.in_launch * s.queries * distances_of(s) : nullptr;
  }

  __device__ __forceinline__ bool seen(int query, int key) const {
    return query < queries_ && key < keys_ && (!causal_ || key <= query);
  }
  // Keys that some of the queries before an end see.
  __device__ __forceinline__ int keys_before(int end) const { return causal_ && end < keys_ ? end : keys_; }

  __device__ __forceinline__ int distance(int query, int key) const {
    return clipping_ + max(-clipping_, min(key - query, clipping_));
  }
  // product: of query and key. The pair has to be seen.
  __device__ __forceinline__ float energy(float product, int query, int key) const {
    const float own = scale_ * product;
    return by_distance_ ? own + by_distance_[int64_t(query) * (2 * clipping_ + 1) + distance(query, key)] : own;
  }

 private:
  int keys_, queries_, clipping_;
  float scale_;
  bool causal_;
  const float* by_distance_;
};

// What dropout keeps of a tile of 64 queries x 64 keys: a byte of each weight in shared memory.
class Kept {
 public:
  static constexpr int kGroups = kTile / 4 + 1;  // of four numbers; a row may begin within one
  static constexpr int kBytes = kTile * kGroups * 4;

  // least, scale: see least_kept; the factor of what is kept.
  __device__ Kept(const RtfAttention& s, const BlockHead& head, uint32_t least, float* memory)
      : s_(s), first_row_(head.row(s, 0)), least_(least), bytes_(reinterpret_cast<unsigned char*>(memory)) {}

  // The threads of the block draw those of queries and keys from these on; a barrier has to come before and after it.
  __device__ void draw(int query, int key) {
    if (s_.dropout == 0.0f) return;
    first_ = (first_row_ + query) * s_.keys + key;
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kGroups; i += kThreads) {
      const int row = i / kGroups, group = i % kGroups;
      const uint64_t at = static_cast<uint64_t>(first_ + row * s_.keys) / 4 + group;
      const uint4 numbers = philox_group(s_.seed_key, s_.seed_counter[0], s_.seed_counter[1], at);
      reinterpret_cast<uint32_t*>(bytes_)[i] = is_kept(numbers.x, least_) | is_kept(numbers.y, least_) << 8 |
                                               is_kept(numbers.z, least_) << 16 | is_kept(numbers.w, least_) << 24;
    }
  }

  // Of a query and a key within the tile.
  __device__ __forceinline__ bool is(int query, int key) const {
    if (s_.dropout == 0.0f) return true;
    const unsigned shift = (static_cast<unsigned>(first_) + query * static_cast<unsigned>(s_.keys)) % 4;
    return bytes_[query * kGroups * 4 + key + shift] != 0;
  }

 private:
  const RtfAttention& s_;
  int64_t first_row_, first_ = 0;
  uint32_t least_;
  unsigned char* bytes_;
};

// Shared memory of a kernel with some tiles, in bytes.
inline size_t shared_bytes(const RtfAttention& s, int tiles) {
  return tiles * kTileSize * sizeof(float) + (s.dropout != 0.0f ? Kept::kBytes : 0);
}

}  // namespace rtf
