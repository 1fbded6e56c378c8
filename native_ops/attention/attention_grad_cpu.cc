// The backward pass: the weights of a block of queries are computed again from the energies and the logarithms of their
// sums. Gradients of keys and values are sums over blocks, in the order of the queries, so that they do not depend on
// threads.
#include "attention.h"
#include "shares.h"

namespace rtf {
namespace {

template <typename Kind>
struct Backward {
  using Products = Kind;
  using AsColumns = typename Products::AsColumns;
  using AsRows = typename Products::AsRows;
  using Sums = typename Products::Sums;

  Packed<Products> packed;
  AsRows keys;            // [keys, key_size]
  AsColumns values;       // [value_size, keys]
  Sums d_keys, d_values;  // of vectors [keys, key_size], [keys, value_size]
  float *dy, *dq;         // [block, value], [block, key]
  float* d_strip;         // [block, keys]: gradients of the weights, then of the energies
  AsRows table;           // [distances, key_size]
  float* d_distance;      // [block, distances]
  Sums d_table;           // of vectors [distances, key_size]
  Factors factors;

  Backward(Arena& arena, const RtfAttention& s, const Sizes& n)
      : packed(s, n, arena),
        keys(arena, s.key_size, n.keys),
        values(arena, s.value_size, n.keys),
        d_keys(arena, s.key_size, n.keys),
        d_values(arena, s.value_size, n.keys),
        dy(arena.take(n.block * n.value)),
        dq(arena.take(n.block * n.key)),
        d_strip(arena.take(n.block * n.keys)),
        table(arena, s.key_size, n.distances),
        d_distance(arena.take(n.block * n.distances)),
        d_table(arena, s.key_size, n.distances),
        factors(s, n, arena) {}
};

// From energies and gradients of the weights of the first n keys of a query: weights as dropout left them (e) and
// gradients of the energies (d); both are 0 up to end. Compiled once for all kinds of products.
//
// :param dot: y . dy
__attribute__((noinline)) void gradients(const Factors& factors, int64_t row, int64_t n, int64_t end, float log_sum,
                                         float dot, float* e, float* d) {
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
void sum_by_distance(const Head& h, Range queries, const float* d_strip, float* d_distance) {
  const RtfAttention& s = h.shape;
  const int64_t keys = h.keys_of(queries);
  for (int64_t t = queries.begin; t < queries.end; ++t) {
    const float* row = d_strip + (t - queries.begin) * h.sizes.keys;
    float* by_distance = d_distance + (t - queries.begin) * h.sizes.distances;
    std::fill(by_distance, by_distance + h.sizes.distances, 0.0f);
    const Range near = near_keys(s, t, keys);
    for (int64_t i = 0; i < near.begin; ++i) by_distance[0] += row[i];
    float* own = by_distance + s.clipping - t;
    for (int64_t i = near.begin; i < near.end; ++i) own[i] += row[i];
    for (int64_t i = near.end; i < keys; ++i) by_distance[2 * s.clipping] += row[i];
  }
}

struct Inputs {
  const RtfVectors &q, &k, &v, &y, &dy, &dq, &dk, &dv;
  const float* log_sums;
};

template <typename Products>
void run_block(const Head& h, Range queries, const Inputs& in, const Backward<Products>& g) {
  const RtfAttention& s = h.shape;
  const Sizes& sizes = h.sizes;
  const Products& products = g.packed.products;
  prefetch(in.y, h.b, h.head, queries, s.value_size);
  const int64_t keys = h.keys_of(queries), step = sizes.keys, n = queries.size();
  energies(h, queries, in.q, g.packed);
  pack_rows(at(in.dy, h.b, queries.begin, h.head), in.dy.time_step, n, s.value_size, 1.0f, g.dy, sizes.value);
  const Block q{g.packed.q, sizes.key, n, s.key_size}, dy{g.dy, sizes.value, n, s.value_size};
  products.multiply(dy, g.values, keys, g.d_strip, step);
  for (int64_t t = queries.begin; t < queries.end; ++t) {
    const float *y = at(in.y, h.b, t, h.head), *dy = at(in.dy, h.b, t, h.head);
    Vec dots{};
    by_vectors(s.value_size, [&](int64_t i, auto whole, int lanes) {
      constexpr bool kWhole = decltype(whole)::value;
      dots += load_n<kWhole>(y + i, lanes) * Products::factor(load_n<kWhole>(dy + i, lanes));
    });
    float dot = 0;
    for (int lane = 0; lane < kLanes; ++lane) dot += dots[lane];
    const int64_t row = (t - queries.begin) * step;
    gradients(g.factors, h.row(t), h.keys_of(t), keys, in.log_sums[h.row(t)], dot, g.packed.strip + row,
              g.d_strip + row);
  }
  const Range next{queries.end, std::min(s.queries, queries.end + sizes.block)};
  prefetch(in.q, h.b, h.head, next, s.key_size);
  prefetch(in.dy, h.b, h.head, next, s.value_size);
  const Block d_energies{g.d_strip, step, n, keys};
  products.multiply(d_energies, g.keys, g.dq, sizes.key, false);
  products.add(d_energies, q, g.d_keys);
  products.add(Block{g.packed.strip, step, n, keys}, dy, g.d_values);
  if (s.table) {
    sum_by_distance(h, queries, g.d_strip, g.d_distance);
    const Block d_distances{g.d_distance, sizes.distances, n, 2 * s.clipping + 1};
    products.multiply(d_distances, g.table, g.dq, sizes.key, true);
    products.add(d_distances, q, g.d_table);
  }
  scale_rows(g.dq, sizes.key, n, s.key_size, s.scale, mutable_at(in.dq, h.b, queries.begin, h.head), in.dq.time_step);
}

template <typename Products>
void run_head(const Head& h, const Inputs& in, float* d_tables, Backward<Products>& g) {
  const RtfAttention& s = h.shape;
  const int64_t n = h.n_keys(), count = 2 * s.clipping + 1;
  g.d_keys.clear();
  g.d_values.clear();
  g.d_table.clear();
  if (n == 0) {
    for (int64_t t = 0; t < s.queries; ++t) std::fill_n(mutable_at(in.dq, h.b, t, h.head), s.key_size, 0.0f);
  } else {
    const Range first{0, std::min(s.queries, h.sizes.block)};
    prefetch(in.q, h.b, h.head, first, s.key_size);
    prefetch(in.dy, h.b, h.head, first, s.value_size);
    g.packed.pack(h, in.k);
    if (s.table) g.table.pack(s.table, s.key_size, count);
    g.keys.pack(at(in.k, h.b, 0, h.head), in.k.time_step, n);
    g.values.pack(at(in.v, h.b, 0, h.head), in.v.time_step, n);
    for (int64_t t = 0; t < s.queries; t += h.sizes.block)
      run_block(h, Range{t, std::min(s.queries, t + h.sizes.block)}, in, g);
  }
  g.d_keys.write(s.keys, mutable_at(in.dk, h.b, 0, h.head), in.dk.time_step);
  g.d_values.write(s.keys, mutable_at(in.dv, h.b, 0, h.head), in.dv.time_step);
  if (s.table) g.d_table.write(count, d_tables + (h.b * s.heads + h.head) * count * s.key_size, s.key_size);
}

}  // namespace
}  // namespace rtf

extern "C" {

void rtf_attention_grad_f32(const RtfAttention* shape, const RtfVectors* q, const RtfVectors* k, const RtfVectors* v,
                            const RtfVectors* y, const float* log_sums, const RtfVectors* dy, const RtfVectors* dq,
                            const RtfVectors* dk, const RtfVectors* dv, float* d_tables, float* scratch,
                            const RtfThreads* threads) {
  const rtf::Inputs inputs{*q, *k, *v, *y, *dy, *dq, *dk, *dv, log_sums};
  rtf::with_products(*shape, [&](auto with) {
    using Memory = rtf::Backward<typename decltype(with)::Products>;
    rtf::for_heads<Memory>(*shape, scratch, *threads,
                           [&](const rtf::Head& h, Memory& memory) { rtf::run_head(h, inputs, d_tables, memory); });
  });
}

int64_t rtf_attention_grad_scratch(const RtfAttention* shape, int n_threads) {
  return rtf::with_products(*shape, [&](auto with) {
    return rtf::scratch_size<rtf::Backward<typename decltype(with)::Products>>(*shape, n_threads);
  });
}
}
