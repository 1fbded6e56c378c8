// Runs the kernels of attention on random sizes, for the sanitizers; results must not depend on the number of threads,
// and weights must sum up to 1.
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
  Array run(int n_threads) {
    const RtfThreads threads = {run_threads, nullptr, n_threads};
    Array y(dy.size()), log_sums(shape.batch * shape.heads * shape.queries), dq(q.size()), dk(k.size()), dv(v.size());
    Array d_tables(shape.batch * shape.heads * table.size());
    const RtfVectors all[] = {vectors(q, shape.queries, shape.key_size),    vectors(k, shape.keys, shape.key_size),
                              vectors(v, shape.keys, shape.value_size),     vectors(y, shape.queries, shape.value_size),
                              vectors(dy, shape.queries, shape.value_size), vectors(dq, shape.queries, shape.key_size),
                              vectors(dk, shape.keys, shape.key_size),      vectors(dv, shape.keys, shape.value_size)};
    Array scratch(rtf_attention_forward_scratch(&shape, n_threads));
    rtf_attention_f32(&shape, &all[0], &all[1], &all[2], &all[3], log_sums.data(), scratch.data(), &threads);
    scratch.resize(rtf_attention_grad_scratch(&shape, n_threads));
    rtf_attention_grad_f32(&shape, &all[0], &all[1], &all[2], &all[3], log_sums.data(), &all[4], &all[5], &all[6],
                           &all[7], d_tables.data(), scratch.data(), &threads);
    return joined({&y, &dq, &dk, &dv, &d_tables});
  }
};

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
    const Array alone = c.run(1);
    if (!finite(alone) || alone != c.run(3)) return std::printf("case %d is wrong\n", seed), 1;
    if (c.shape.dropout != 0 || c.shape.lengths || c.shape.keys == 0) continue;
    c.v.assign(c.v.size(), 1.0f);
    const Array ones = c.run(2);
    for (size_t i = 0; i < c.dy.size(); ++i)
      if (std::fabs(ones[i] - 1) > 1e-5f) return std::printf("case %d: weights sum up to %g\n", seed, ones[i]), 1;
  }
  std::puts("good");
}
