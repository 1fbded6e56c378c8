// The forward pass on a GPU: a block has 64 queries of a head and 64 numbers of their results, and goes through the
// keys 64 at a time. The softmax has a running maximum: sums and results are scaled when it grows (FlashAttention-2,
// arXiv 2307.08691). Values are on their way while energies are computed, the next keys while the values are
// multiplied.
#include <float.h>

#include "attention_cuda.h"
#include "cuda_distances.h"

namespace rtf {
namespace {

// The largest of the numbers that the four lanes of a row have.
__device__ __forceinline__ float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// The softmax of the two rows of a lane so far. The maximum starts at a finite number, so that there is no difference
// of infinities before the first key that is seen; fmaxf ignores NaN, which stays in the sum.
struct Softmax {
  float most[2] = {-FLT_MAX, -FLT_MAX}, sum[2] = {0.0f, 0.0f};  // the sum: of this lane's columns

  // Replaces the energies of 64 keys by exponentials. first_query: of the tile; likewise first_key
  __device__ __forceinline__ void add(const Energies& energies, int first_query, int first_key, Sums& e,
                                      Sums& results) {
    float higher[2] = {most[0], most[1]};
    for_places([&](const Place& place) {
      const int query = first_query + place.row, key = first_key + place.column;
      float& x = place.of(e);
      x = energies.seen(query, key) ? energies.energy(x, query, key) : -INFINITY;
      higher[place.side()] = fmaxf(higher[place.side()], x);
    });
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      higher[r] = largest_of_row(higher[r]);
      factor[r] = __expf(most[r] - higher[r]);
      most[r] = higher[r];
      sum[r] *= factor[r];
    }
    for_places([&](const Place& place) {
      float& x = place.of(e);
      x = __expf(x - most[place.side()]);
      sum[place.side()] += x;
      place.of(results) *= factor[place.side()];
    });
  }
};

template <class Math>
__global__ void __launch_bounds__(kThreads, 3)
    forward(RtfAttention s, RtfVectors q, RtfVectors k, RtfVectors v, RtfVectors y, float* log_sums, uint32_t least,
            ByDistance launch) {
  float* tiles = dynamic_shared<float>();
  const int blocks = static_cast<int>(tiles_of(s.queries));
  const BlockHead head(s, launch, blocks);
  const Energies energies(s, head, launch);
  const int first_query = (blocks - 1 - head.tile) * kTile;  // with causal, those with most keys first
  const int end = energies.keys_before(first_query + kTile);
  const int part = static_cast<int>(blockIdx.y);
  const Rows queries = head.rows(q, s.queries, s.key_size, tiles);
  const Rows keys = head.rows(k, head.keys, s.key_size, tiles + kTileSize);
  const Rows values = head.rows(v, head.keys, s.value_size, tiles + 2 * kTileSize);
  Kept kept(s, head, least, tiles + 3 * kTileSize);
  Softmax softmax;
  Sums results;
  clear(results);
  if (end > 0) {  // else there may be no address of a key
    queries.prefetch(first_query);
    keys.prefetch(0);
  }
  for (int first = 0; first < end; first += kTile) {
    tiles_are_there();
    values.load(first, part);
    kept.draw(first_query, first);
    Sums e;
    product_of_rows<Math>(e, queries, first_query, keys, first, 0);
    softmax.add(energies, first_query, first, e, results);
    tiles_are_there();
    if (first + kTile < end) keys.prefetch(first + kTile);
    for_places([&](const Place& place) {
      if (!kept.is(place.row, place.column)) place.of(e) = 0.0f;
    });
    multiply_columns<Math>(results, e, values.tile(), min(end - first, kTile), values.numbers(part));
  }
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = sum_of_row(softmax.sum[r]);
    const int query = first_query + warp_of() * kWarpRows + lane_of() / 4 + 8 * r;
    factor[r] = end > 0 ? 1.0f / ((1.0f - s.dropout) * sum) : 0.0f;
    if (part == 0 && lane_of() % 4 == 0 && query < s.queries)
      log_sums[head.row(s, query)] = end > 0 ? softmax.most[r] + logf(sum) : 0.0f;
  }
  for_places([&](const Place& place) {
    const int query = first_query + place.row, at = part * kTile + place.column;
    if (query < s.queries && at < s.value_size) head.at(y, query)[at] = factor[place.side()] * place.of(results);
  });
}

template <class Math>
cudaError_t run(const RtfAttention& s, const RtfVectors& q, const RtfVectors& k, const RtfVectors& v,
                const RtfVectors& y, float* log_sums, float* scratch, cudaStream_t stream) {
  return for_launches(s, scratch, [&](const ByDistance& heads) {
    const cudaError_t error = launch_energies_by_distance<Math>(s, q, heads, stream);
    if (error != cudaSuccess) return error;
    return launch_heads(forward<Math>, heads, tiles_of(s.queries), parts_of(s.value_size), shared_bytes(s, 3), stream,
                        s, q, k, v, y, log_sums, least_kept(s.dropout), heads);
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_attention_forward_cuda_scratch(const RtfAttention* shape) { return rtf::size_by_distance(*shape); }

const char* rtf_attention_cuda_f32(const RtfAttention* shape, const RtfVectors* q, const RtfVectors* k,
                                   const RtfVectors* v, const RtfVectors* y, float* log_sums, float* scratch,
                                   int numbers, void* stream) {
  return rtf::with_numbers(*shape, numbers, [&](auto math) {
    return rtf::run<decltype(math)>(*shape, *q, *k, *v, *y, log_sums, scratch, static_cast<cudaStream_t>(stream));
  });
}
}
