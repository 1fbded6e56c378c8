// The backward pass on a GPU: weights are computed again from energies and the logarithms of their sums. One kernel has
// a block for 64 keys, which goes through the queries; another one a block for 64 queries, which goes through the keys.
// So there are seven products where five would do, but every sum has one block and a fixed order, without atomics.
#include "attention_cuda.h"
#include "cuda_distances.h"

namespace rtf {
namespace {

// y . dy of each query, by a warp.
__global__ void __launch_bounds__(kThreads) dot_products(RtfAttention s, RtfVectors y, RtfVectors dy, float* dots) {
  const int64_t row = int64_t(blockIdx.x) * kWarps + warp_of();
  if (row >= s.batch * s.heads * s.queries) return;
  const int64_t b = row / s.queries / s.heads, head = row / s.queries % s.heads, t = row % s.queries;
  const float* left = y.data + b * y.batch_step + t * y.time_step + head * y.head_step;
  const float* right = dy.data + b * dy.batch_step + t * dy.time_step + head * dy.head_step;
  float sum = 0.0f;
  for (int64_t i = lane_of(); i < s.value_size; i += kWarp) sum += left[i] * right[i];
#pragma unroll
  for (int other = kWarp / 2; other >= 1; other /= 2) sum += __shfl_xor_sync(kAllLanes, sum, other);
  if (lane_of() == 0) dots[row] = sum;
}

struct Saved {
  const float *log_sums, *dots;  // [batch, heads, queries]
};

// From energy and gradient of a weight: the weight, and the gradient of the energy. factor: of dropout
__device__ __forceinline__ float weight_of(float energy, float log_sum) { return __expf(energy - log_sum); }
__device__ __forceinline__ float gradient_of(float weight, float d_weight, float factor, float dot) {
  return weight * (d_weight * factor - dot);
}

// Gradients of 64 queries, 64 numbers of each; the first of these blocks writes those of the energies by distance.
template <class Math>
__global__ void __launch_bounds__(kThreads, 2)
    of_queries(RtfAttention s, RtfVectors q, RtfVectors k, RtfVectors v, RtfVectors dy, RtfVectors dq, Saved saved,
               uint32_t least, ByDistance launch) {
  float* tiles = dynamic_shared<float>();
  const int blocks = static_cast<int>(tiles_of(s.queries)), distances = static_cast<int>(distances_of(s));
  const BlockHead head(s, launch, blocks);
  const Energies energies(s, head, launch);
  const int first_query = (blocks - 1 - head.tile) * kTile, end = energies.keys_before(first_query + kTile);
  const int part = static_cast<int>(blockIdx.y);
  const Rows queries = head.rows(q, s.queries, s.key_size, tiles);
  const Rows keys = head.rows(k, head.keys, s.key_size, tiles + kTileSize);
  const Rows outputs = head.rows(dy, s.queries, s.value_size, tiles + 2 * kTileSize);
  const Rows values = head.rows(v, head.keys, s.value_size, tiles + 3 * kTileSize);
  Kept kept(s, head, least, tiles + 4 * kTileSize);
  const float scale = 1.0f / (1.0f - s.dropout);
  const int query = first_query + warp_of() * kWarpRows + lane_of() / 4;  // of the first row of a lane
  float log_sum[2], dot[2], far[2][2] = {};  // far: gradients of the first and the last distance, of a lane's columns
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool there = query + 8 * r < s.queries;
    log_sum[r] = there ? saved.log_sums[head.row(s, query + 8 * r)] : 0.0f;
    dot[r] = there ? saved.dots[head.row(s, query + 8 * r)] : 0.0f;
  }
  const bool by_distance = s.table && part == 0;
  float* d_distance = by_distance ? launch.gradients + head.in_launch * s.queries * distances : nullptr;
  Sums sums;
  clear(sums);
  if (end > 0) {  // else there may be no address of a key
    queries.prefetch(first_query);
    keys.prefetch(0);
    outputs.prefetch(first_query);
    values.prefetch(0);
  }
  for (int first = 0; first < end; first += kTile) {
    tiles_are_there();
    kept.draw(first_query, first);
    Sums e, d;
    product_of_rows<Math>(d, outputs, first_query, values, first, 0);
    product_of_rows<Math>(e, queries, first_query, keys, first, part);
    __syncthreads();
    if (first + kTile < end) values.prefetch(first + kTile);
    for_places([&](const Place& place) {
      const int at = first_query + place.row, key = first + place.column;
      const int r = place.side();
      float& gradient = place.of(d);
      if (!energies.seen(at, key)) {
        gradient = 0.0f;
        return;
      }
      const float weight = weight_of(energies.energy(place.of(e), at, key), log_sum[r]);
      gradient = gradient_of(weight, gradient, kept.is(place.row, place.column) ? scale : 0.0f, dot[r]);
      if (!by_distance) return;
      const int distance = energies.distance(at, key);
      if (distance == 0)
        far[r][0] += gradient;
      else if (distance == distances - 1)
        far[r][1] += gradient;
      else
        d_distance[int64_t(at) * distances + distance] = gradient;
    });
    multiply_columns<Math>(sums, d, keys.tile(), min(end - first, kTile), keys.numbers(part));
    __syncthreads();
    if (first + kTile < end) keys.prefetch(first + kTile);
  }
  for_places([&](const Place& place) {
    const int row = first_query + place.row, at = part * kTile + place.column;
    if (row < s.queries && at < s.key_size) head.at(dq, row)[at] = s.scale * place.of(sums);
  });
  if (!by_distance) return;
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const float sum = sum_of_row(far[r][side]);
      if (lane_of() % 4 == 0 && query + 8 * r < s.queries && (side == 0 || distances > 1))
        d_distance[int64_t(query + 8 * r) * distances + (side == 0 ? 0 : distances - 1)] = sum;
    }
}

// Gradients of 64 keys and their values, 64 numbers of each. Rows of the tiles are keys.
template <class Math>
__global__ void __launch_bounds__(kThreads, 2)
    of_keys(RtfAttention s, RtfVectors q, RtfVectors k, RtfVectors v, RtfVectors dy, RtfVectors dk, RtfVectors dv,
            Saved saved, uint32_t least, ByDistance launch) {
  float* tiles = dynamic_shared<float>();
  const BlockHead head(s, launch, tiles_of(s.keys));
  const Energies energies(s, head, launch);
  const int first_key = head.tile * kTile, begin = s.causal ? first_key : 0;
  const int end = first_key < head.keys ? static_cast<int>(s.queries) : 0;
  const int part = static_cast<int>(blockIdx.y);
  const Rows keys = head.rows(k, head.keys, s.key_size, tiles);
  const Rows queries = head.rows(q, s.queries, s.key_size, tiles + kTileSize);
  const Rows values = head.rows(v, head.keys, s.value_size, tiles + 2 * kTileSize);
  const Rows outputs = head.rows(dy, s.queries, s.value_size, tiles + 3 * kTileSize);
  Kept kept(s, head, least, tiles + 4 * kTileSize);
  const float scale = 1.0f / (1.0f - s.dropout);
  Sums d_keys, d_values;
  clear(d_keys);
  clear(d_values);
  if (begin < end) {
    keys.prefetch(first_key);
    values.prefetch(first_key);
    queries.prefetch(begin);
    outputs.prefetch(begin);
  }
  for (int first = begin; first < end; first += kTile) {
    tiles_are_there();
    kept.draw(first, first_key);
    Sums e, d;
    product_of_rows<Math>(e, keys, first_key, queries, first, part);
    product_of_rows<Math>(d, values, first_key, outputs, first, part);
    __syncthreads();
    for_places([&](const Place& place) {
      const int query = first + place.column, key = first_key + place.row;
      float &weight = place.of(e), &gradient = place.of(d);
      if (!energies.seen(query, key)) {
        weight = gradient = 0.0f;
        return;
      }
      const int64_t row = head.row(s, query);
      const float whole = weight_of(energies.energy(weight, query, key), saved.log_sums[row]);
      const float factor = kept.is(place.column, place.row) ? scale : 0.0f;
      weight = whole * factor;
      gradient = gradient_of(whole, gradient, factor, saved.dots[row]);
    });
    const int n = min(end - first, kTile);
    if (part < values.parts()) multiply_columns<Math>(d_values, e, outputs.tile(), n, values.numbers(part));
    if (part < keys.parts()) multiply_columns<Math>(d_keys, d, queries.tile(), n, keys.numbers(part));
    __syncthreads();
    if (first + kTile < end) {
      queries.prefetch(first + kTile);
      outputs.prefetch(first + kTile);
    }
  }
  for_places([&](const Place& place) {
    const int key = first_key + place.row, at = part * kTile + place.column;
    const bool there = key < head.keys;
    if (key < s.keys && at < s.key_size) head.at(dk, key)[at] = there ? s.scale * place.of(d_keys) : 0.0f;
    if (key < s.keys && at < s.value_size) head.at(dv, key)[at] = there ? place.of(d_values) : 0.0f;
  });
}

template <class Math>
cudaError_t run(const RtfAttention& s, const RtfVectors& q, const RtfVectors& k, const RtfVectors& v,
                const RtfVectors& y, const float* log_sums, const RtfVectors& dy, const RtfVectors& dq,
                const RtfVectors& dk, const RtfVectors& dv, float* d_tables, float* scratch, cudaStream_t stream) {
  const int64_t rows = s.batch * s.heads * s.queries, distances = distances_of(s);
  const int key_parts = parts_of(s.key_size), parts = std::max(key_parts, parts_of(s.value_size));
  const uint32_t least = least_kept(s.dropout);
  float* dots = scratch;
  if (rows > 0 && is_countable(s)) {
    const unsigned blocks = static_cast<unsigned>((rows + kWarps - 1) / kWarps);
    const cudaError_t error = launch(dot_products, blocks, kThreads, 0, stream, s, y, dy, dots);
    if (error != cudaSuccess) return error;
  }
  const Saved saved{log_sums, dots};
  return for_launches(s, scratch + rows, [&](const ByDistance& heads) {
    cudaError_t error = launch_energies_by_distance<Math>(s, q, heads, stream);
    if (error == cudaSuccess)
      error = launch_heads(of_keys<Math>, heads, tiles_of(s.keys), parts, shared_bytes(s, 4), stream, s, q, k, v, dy,
                           dk, dv, saved, least, heads);
    if (error == cudaSuccess && s.table)  // of distances that no key has, too
      error = cudaMemsetAsync(heads.gradients, 0, heads.heads * s.queries * distances * sizeof(float), stream);
    if (error == cudaSuccess)
      error = launch_heads(of_queries<Math>, heads, tiles_of(s.queries), key_parts, shared_bytes(s, 4), stream, s, q, k,
                           v, dy, dq, saved, least, heads);
    if (error != cudaSuccess || !s.table) return error;
    const size_t shared = kTileSize * sizeof(float);
    error = launch_heads(gradients_by_distance<Math, false>, heads, tiles_of(s.queries), key_parts, shared, stream, s,
                         q, dq, d_tables, heads);
    if (error != cudaSuccess) return error;
    return launch_heads(gradients_by_distance<Math, true>, heads, tiles_of(distances), key_parts, shared, stream, s, q,
                        dq, d_tables, heads);
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_attention_grad_cuda_scratch(const RtfAttention* shape) {
  return shape->batch * shape->heads * shape->queries + 2 * rtf::size_by_distance(*shape);
}

const char* rtf_attention_grad_cuda_f32(const RtfAttention* shape, const RtfVectors* q, const RtfVectors* k,
                                        const RtfVectors* v, const RtfVectors* y, const float* log_sums,
                                        const RtfVectors* dy, const RtfVectors* dq, const RtfVectors* dk,
                                        const RtfVectors* dv, float* d_tables, float* scratch, int numbers,
                                        void* stream) {
  return rtf::with_numbers(*shape, numbers, [&](auto math) {
    return rtf::run<decltype(math)>(*shape, *q, *k, *v, *y, log_sums, *dy, *dq, *dk, *dv, d_tables, scratch,
                                    static_cast<cudaStream_t>(stream));
  });
}
}
