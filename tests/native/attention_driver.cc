// Runs the kernels of attention on random sizes, with floats and with rounded factors, for the sanitizers; results must
// not depend on the number of threads, rounding must change little, and weights must sum up to 1.
#include "attention/attention.h"
#include "driver.h"

namespace {

struct Case {
  RtfAttention shape;
  std::vector<int32_t> lengths;
  Array table, q, k, v, dy;

  RtfVectors vectors(Array& x, int64_t frames, int64_t size) const {
    return {x.data(), frames * shape.heads * size, shape.heads * size, size};
  }

  // y, and the gradients of q, k and v
  std::vector<Array> run(int n_threads) {
    const RtfThreads threads = {run_threads, nullptr, n_threads};
    Array y(dy.size()), log_sums(shape.batch * shape.heads * shape.queries), dq(q.size()), dk(k.size()), dv(v.size());
    Array d_tables(shape.batch * shape.heads * table.size());
    const RtfVectors all[] = {vectors(q, shape.queries, shape.key_size),    vectors(k, shape.keys, shape.key_size),
                              vectors(v, shape.keys, shape.value_size),     vectors(y, shape.queries, shape.value_size),
                              vectors(dy, shape.queries, shape.value_size), vectors(dq, shape.queries, shape.key_size),
                              vectors(dk, shape.keys, shape.key_size),      vectors(dv, shape.keys, shape.value_size)};
    Array scratch(rtf_attention_forward_scratch(&shape, n_threads), NAN);
    rtf_attention_f32(&shape, &all[0], &all[1], &all[2], &all[3], log_sums.data(), scratch.data(), &threads);
    scratch.assign(rtf_attention_grad_scratch(&shape, n_threads), NAN);
    rtf_attention_grad_f32(&shape, &all[0], &all[1], &all[2], &all[3], log_sums.data(), &all[4], &all[5], &all[6],
                           &all[7], d_tables.data(), scratch.data(), &threads);
    return {y, dq, dk, dv, d_tables};
  }
};

// Rms of the difference in proportion to that of the first one, or to 1e-4: gradients may be 0 but for rounding.
double difference(const Array& x, const Array& y) {
  double between = 0, of_x = 1e-30 + 1e-8 * x.size();
  for (size_t i = 0; i < x.size(); ++i) between += std::pow(x[i] - y[i], 2), of_x += std::pow(x[i], 2);
  return std::sqrt(between / of_x);
}

}  // namespace

int main() {
  for (int seed = 1; seed <= 60; ++seed) {
    std::srand(seed);
    const bool causal = seed % 3 == 0, with_table = seed % 2;
    Case c;
    c.shape = {};
    c.shape.batch = std::rand() % 4;
    c.shape.heads = 1 + std::rand() % 3;
    c.shape.queries = std::rand() % 90;
    c.shape.keys = causal ? c.shape.queries : std::rand() % 150;
    c.shape.key_size = 1 + std::rand() % 70;
    c.shape.value_size = 1 + std::rand() % 70;
    for (int64_t b = 0; b < c.shape.batch; ++b) c.lengths.push_back(std::rand() % (c.shape.keys + 1));
    c.shape.lengths = seed % 5 ? c.lengths.data() : nullptr;
    c.shape.causal = causal;
    c.shape.scale = 0.5f;
    c.shape.clipping = with_table ? std::rand() % 20 : 0;
    if (with_table) c.table = random_array((2 * c.shape.clipping + 1) * c.shape.key_size);
    c.shape.table = with_table ? c.table.data() : nullptr;
    c.shape.dropout = seed % 4 ? 0.0f : 0.3f;
    const int64_t queries = c.shape.batch * c.shape.heads * c.shape.queries;
    const int64_t keys = c.shape.batch * c.shape.heads * c.shape.keys;
    c.q = random_array(queries * c.shape.key_size);
    c.k = random_array(keys * c.shape.key_size);
    c.v = random_array(keys * c.shape.value_size);
    c.dy = random_array(queries * c.shape.value_size);
    const std::vector<Array> exact = c.run(1);
    for (int rounded = 0; rounded < 2; ++rounded) {
      c.shape.rounded = rounded;
      const std::vector<Array> alone = c.run(1);
      if (alone != c.run(3)) return std::printf("case %d: depends on threads\n", seed), 1;
      for (size_t i = 0; i < alone.size(); ++i)
        if (!finite(alone[i]) || !(difference(exact[i], alone[i]) < 0.02))
          return std::printf("case %d, rounded %d: result %zu is wrong\n", seed, rounded, i), 1;
    }
    if (c.shape.dropout != 0 || c.shape.lengths || c.shape.keys == 0) continue;
    c.v.assign(c.v.size(), 1.0f);
    for (int rounded = 0; rounded < 2; ++rounded) {
      c.shape.rounded = rounded;
      const std::vector<Array> results = c.run(2);
      for (const float one : results[0])
        if (std::fabs(one - 1) > (rounded ? 4e-3f : 1e-5f))
          return std::printf("case %d: weights sum up to %g\n", seed, one), 1;
    }
  }
  std::puts("good");
}
