// The forward pass: a thread takes a head, packs its keys and values, and computes block after block of queries. The
// weights of a block over all keys stay in the cache of a core.
#include "attention.h"
#include "shares.h"

namespace rtf {
namespace {

template <typename Kind>
struct Forward {
  using Products = Kind;

  Packed<Products> packed;
  typename Products::AsRows values;  // [keys, value_size]
  float* y;                          // [block, value]
  Factors factors;

  Forward(Arena& arena, const RtfAttention& s, const Sizes& sizes)
      : packed(s, sizes, arena),
        values(arena, s.value_size, sizes.keys),
        y(arena.take(sizes.block * sizes.value)),
        factors(s, sizes, arena) {}
};

// Replaces the first n energies of a query by exp(e - max) times the factor of dropout, and those up to end by 0.
// Returns the maximum and the sum without dropout. Compiled once for all kinds of products.
__attribute__((noinline)) void exponentials(const Factors& factors, int64_t row, int64_t n, int64_t end, float* e,
                                            float* most, float* sum) {
  const int64_t padded = whole_vectors(n);
  std::fill(e + n, e + padded, std::numeric_limits<float>::lowest());
  Vec highest = load(e), total{};
  for (int64_t i = kLanes; i < padded; i += kLanes) highest = at_least(load(e + i), highest);
  float lanes[kLanes];
  store(lanes, highest);
#pragma GCC unroll 4
  for (int width = kLanes / 2; width > 0; width /= 2)
#pragma GCC unroll 8
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] < lanes[i + width] ? lanes[i + width] : lanes[i];
  *most = lanes[0];  // NaN may be lost here, but stays in the exponentials
  const Vec shift = splat(*most);
  factors.for_keys(row, n, [&](int64_t i, Vec factor) {
    Vec scale, rest;
    exp_parts(load(e + i) - shift, &scale, &rest);
    const Vec value = scale + scale * rest;
    total += value;
    store(e + i, value * factor);
  });
  std::fill(e + n, e + std::max(end, padded), 0.0f);
  *sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) *sum += total[lane];
}

template <typename Products>
void run_block(const Head& h, Range queries, const RtfVectors& q, const RtfVectors& y, float* log_sums,
               const Forward<Products>& f) {
  const RtfAttention& s = h.shape;
  const int64_t keys = h.keys_of(queries), step = h.sizes.keys;
  energies(h, queries, q, f.packed);
  prefetch(q, h.b, h.head, {queries.end, std::min(s.queries, queries.end + h.sizes.block)}, s.key_size);
  float factors[Products::kSizes.most];
  for (int64_t t = queries.begin; t < queries.end; ++t) {
    float most, sum;
    exponentials(f.factors, h.row(t), h.keys_of(t), keys, f.packed.strip + (t - queries.begin) * step, &most, &sum);
    log_sums[h.row(t)] = most + std::log(sum);
    factors[t - queries.begin] = 1.0f / sum;
  }
  f.packed.products.multiply(Block{f.packed.strip, step, queries.size(), keys}, f.values, f.y, h.sizes.value, false);
  for (int64_t t = queries.begin; t < queries.end; ++t) {
    const float* from = f.y + (t - queries.begin) * h.sizes.value;
    float* to = mutable_at(y, h.b, t, h.head);
    const float factor = factors[t - queries.begin];
    for (int64_t i = 0; i < s.value_size; ++i) to[i] = factor * from[i];
  }
}

template <typename Products>
void run_head(const Head& h, const RtfVectors& q, const RtfVectors& k, const RtfVectors& v, const RtfVectors& y,
              float* log_sums, Forward<Products>& f) {
  const RtfAttention& s = h.shape;
  if (h.n_keys() == 0) {
    for (int64_t t = 0; t < s.queries; ++t) {
      log_sums[h.row(t)] = 0;
      std::fill_n(mutable_at(y, h.b, t, h.head), s.value_size, 0.0f);
    }
    return;
  }
  prefetch(q, h.b, h.head, {0, std::min(s.queries, h.sizes.block)}, s.key_size);
  f.packed.pack(h, k);
  f.values.pack(at(v, h.b, 0, h.head), v.time_step, h.n_keys());
  for (int64_t t = 0; t < s.queries; t += h.sizes.block)
    run_block(h, Range{t, std::min(s.queries, t + h.sizes.block)}, q, y, log_sums, f);
}

}  // namespace
}  // namespace rtf

extern "C" {

void rtf_attention_f32(const RtfAttention* shape, const RtfVectors* q, const RtfVectors* k, const RtfVectors* v,
                       const RtfVectors* y, float* log_sums, float* scratch, const RtfThreads* threads) {
  rtf::with_products(*shape, [&](auto with) {
    using Memory = rtf::Forward<typename decltype(with)::Products>;
    rtf::for_heads<Memory>(*shape, scratch, *threads, [&](const rtf::Head& h, Memory& memory) {
      rtf::run_head(h, *q, *k, *v, *y, log_sums, memory);
    });
  });
}

int64_t rtf_attention_forward_scratch(const RtfAttention* shape, int n_threads) {
  return rtf::with_products(*shape, [&](auto with) {
    return rtf::scratch_size<rtf::Forward<typename decltype(with)::Products>>(*shape, n_threads);
  });
}
}
