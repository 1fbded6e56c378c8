// The backward pass: the weights of a block of queries are computed again from the energies and the logarithms of their
// sums. Gradients of keys and values are sums over blocks, in the order of the queries, so that they do not depend on
// threads.
#include "attention.h"
#include "shares.h"

namespace rtf {
namespace {

struct Backward {
  Packed packed;
  float *keys, *values;       // [keys, key]: rows; columns of [value_size, keys]
  float *d_keys, *d_values;   // [keys, key], [keys, value]: sums
  float *dy, *dq;             // [block, value], [block, key]
  float* d_strip;             // [block, keys]: gradients of the weights, then of the energies
  float *table, *d_distance;  // [distances, key], [block, distances]
  float* d_table;             // [distances, key]: sums
  Factors factors;

  Backward(Arena& arena, const RtfAttention& s, const Sizes& n)
      : packed(s, n, arena),
        keys(arena.take(n.keys * n.key)),
        values(arena.take(s.value_size * n.keys)),
        d_keys(arena.take(n.keys * n.key)),
        d_values(arena.take(n.keys * n.value)),
        dy(arena.take(n.block * n.value)),
        dq(arena.take(n.block * n.key)),
        d_strip(arena.take(n.block * n.keys)),
        table(arena.take(n.distances * n.key)),
        d_distance(arena.take(n.block * n.distances)),
        d_table(arena.take(n.distances * n.key)),
        factors(s, n, arena) {}
};

// From energies and gradients of the weights of the first n keys of a query: weights as dropout left them (e) and
// gradients of the energies (d); both are 0 up to end.
//
// :param dot: y . dy
void gradients(const Factors& factors, int64_t row, int64_t n, int64_t end, float log_sum, float dot, float* e,
               float* d) {
  const Vec shift = splat(log_sum), less = splat(dot);
  factors.for_keys(row, n, [&](int64_t i, Vec factor) {
    Vec scale, rest;
    exp_parts(load(e + i) - shift, &scale, &rest);
    const Vec weight = scale + scale * rest;
    store(e + i, weight * factor);
    store(d + i, weight * (load(d + i) * factor - less));
  });
  end = std::max(end, whole_vectors(n));
  std::fill(e + n, e + end, 0.0f);
  std::fill(d + n, d + end, 0.0f);
}

// Gradients of the energies by distance, from those by key.
void sum_by_distance(const Head& h, Range queries, const Backward& g) {
  const RtfAttention& s = h.shape;
  const int64_t keys = h.keys_of(queries);
  for (int64_t t = queries.begin; t < queries.end; ++t) {
    const float* row = g.d_strip + (t - queries.begin) * h.sizes.keys;
    float* by_distance = g.d_distance + (t - queries.begin) * h.sizes.distances;
    std::fill(by_distance, by_distance + h.sizes.distances, 0.0f);
    const Range near = near_keys(s, t, keys);
    for (int64_t i = 0; i < near.begin; ++i) by_distance[0] += row[i];
    float* own = by_distance + s.clipping - t;
    for (int64_t i = near.begin; i < near.end; ++i) own[i] += row[i];
    for (int64_t i = near.end; i < keys; ++i) by_distance[2 * s.clipping] += row[i];
  }
}

void scale_rows(const float* from, int64_t from_step, int64_t n, int64_t size, float factor, float* to,
                int64_t to_step) {
  for (int64_t t = 0; t < n; ++t)
    for (int64_t i = 0; i < size; ++i) to[t * to_step + i] = factor * from[t * from_step + i];
}

struct Inputs {
  const RtfVectors &q, &k, &v, &y, &dy, &dq, &dk, &dv;
  const float* log_sums;
};

void run_block(const Head& h, Range queries, const Inputs& in, const Backward& g) {
  const RtfAttention& s = h.shape;
  const Sizes& sizes = h.sizes;
  const int64_t keys = h.keys_of(queries), padded = whole_vectors(keys), step = sizes.keys, n = queries.size();
  pack_rows(at(in.q, h.b, queries.begin, h.head), in.q.time_step, n, s.key_size, s.scale, g.packed.q);
  pack_rows(at(in.dy, h.b, queries.begin, h.head), in.dy.time_step, n, s.value_size, 1.0f, g.dy);
  energies(h, queries, g.packed);
  multiply(Left{g.dy, sizes.value, 1}, n, Right{g.values, s.value_size, padded, whole_vectors(h.n_keys())}, g.d_strip,
           step, false);
  for (int64_t t = queries.begin; t < queries.end; ++t) {
    const float *y = at(in.y, h.b, t, h.head), *dy = at(in.dy, h.b, t, h.head);
    float dot = 0;
    for (int64_t i = 0; i < s.value_size; ++i) dot += y[i] * dy[i];
    const int64_t row = (t - queries.begin) * step;
    gradients(g.factors, h.row(t), h.keys_of(t), keys, in.log_sums[h.row(t)], dot, g.packed.strip + row,
              g.d_strip + row);
  }
  const Left d_energies{g.d_strip, step, 1}, d_columns{g.d_strip, 1, step}, weight_columns{g.packed.strip, 1, step};
  multiply(d_energies, n, Right{g.keys, keys, sizes.key, 0}, g.dq, sizes.key, false);
  multiply(d_columns, keys, Right{g.packed.q, n, sizes.key, 0}, g.d_keys, sizes.key, true);
  multiply(weight_columns, keys, Right{g.dy, n, sizes.value, 0}, g.d_values, sizes.value, true);
  if (s.table) {
    sum_by_distance(h, queries, g);
    const int64_t count = 2 * s.clipping + 1, distances = sizes.distances;
    multiply(Left{g.d_distance, distances, 1}, n, Right{g.table, count, sizes.key, 0}, g.dq, sizes.key, true);
    multiply(Left{g.d_distance, 1, distances}, count, Right{g.packed.q, n, sizes.key, 0}, g.d_table, sizes.key, true);
  }
  scale_rows(g.dq, sizes.key, n, s.key_size, s.scale, mutable_at(in.dq, h.b, queries.begin, h.head), in.dq.time_step);
}

void run_head(const Head& h, const Inputs& in, float* d_tables, const Backward& g) {
  const RtfAttention& s = h.shape;
  const int64_t n = h.n_keys(), count = 2 * s.clipping + 1;
  std::fill_n(g.d_keys, h.sizes.keys * h.sizes.key, 0.0f);
  std::fill_n(g.d_values, h.sizes.keys * h.sizes.value, 0.0f);
  std::fill_n(g.d_table, h.sizes.distances * h.sizes.key, 0.0f);
  if (n == 0) {
    for (int64_t t = 0; t < s.queries; ++t) std::fill_n(mutable_at(in.dq, h.b, t, h.head), s.key_size, 0.0f);
  } else {
    pack_table(s, g.packed);
    if (s.table) pack_rows(s.table, s.key_size, count, s.key_size, 1.0f, g.table);
    pack_head(h, in.k, g.packed);
    pack_rows(at(in.k, h.b, 0, h.head), in.k.time_step, n, s.key_size, 1.0f, g.keys);
    pack_columns(at(in.v, h.b, 0, h.head), in.v.time_step, n, s.value_size, g.values);
    for (int64_t t = 0; t < s.queries; t += h.sizes.block)
      run_block(h, Range{t, std::min(s.queries, t + h.sizes.block)}, in, g);
  }
  scale_rows(g.d_keys, h.sizes.key, s.keys, s.key_size, 1.0f, mutable_at(in.dk, h.b, 0, h.head), in.dk.time_step);
  scale_rows(g.d_values, h.sizes.value, s.keys, s.value_size, 1.0f, mutable_at(in.dv, h.b, 0, h.head), in.dv.time_step);
  if (s.table)
    scale_rows(g.d_table, h.sizes.key, count, s.key_size, 1.0f,
               d_tables + (h.b * s.heads + h.head) * count * s.key_size, s.key_size);
}

}  // namespace
}  // namespace rtf

extern "C" {

void rtf_attention_grad_f32(const RtfAttention* shape, const RtfVectors* q, const RtfVectors* k, const RtfVectors* v,
                            const RtfVectors* y, const float* log_sums, const RtfVectors* dy, const RtfVectors* dq,
                            const RtfVectors* dk, const RtfVectors* dv, float* d_tables, float* scratch,
                            const RtfThreads* threads) {
  const rtf::Sizes sizes(*shape);
  const rtf::Inputs inputs{*q, *k, *v, *y, *dy, *dq, *dk, *dv, log_sums};
  rtf::for_heads<rtf::Backward>(*shape, sizes, scratch, *threads, [&](const rtf::Head& h, const rtf::Backward& memory) {
    rtf::run_head(h, inputs, d_tables, memory);
  });
}

int64_t rtf_attention_grad_scratch(const RtfAttention* shape, int n_threads) {
  return rtf::scratch_of(rtf::size_of<rtf::Backward>(*shape, rtf::Sizes(*shape)), n_threads);
}
}
