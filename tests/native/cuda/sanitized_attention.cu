// Runs the GPU kernels of attention on arrays of exactly their size, for the sanitizers to watch.
#include "../driver.h"
#include "attention/attention_cuda.cu"
#include "attention/attention_grad_cuda.cu"

namespace {

RtfVectors vectors(const RtfAttention& s, const Array& x, int64_t frames, int64_t size) {
  return {const_cast<float*>(x.data()), frames * s.heads * size, s.heads * size, size};
}

const char* run(const RtfAttention& s, int numbers) {
  const int64_t queries = s.batch * s.heads * s.queries, keys = s.batch * s.heads * s.keys;
  const int64_t table = rtf::distances_of(s) * s.key_size;
  const Array q = random_array(queries * s.key_size), k = random_array(keys * s.key_size);
  const Array v = random_array(keys * s.value_size), dy = random_array(queries * s.value_size);
  const Array y(dy.size()), dq(q.size()), dk(k.size()), dv(v.size());
  Array log_sums(queries), d_tables(s.batch * s.heads * table), scratch(rtf_attention_forward_cuda_scratch(&s));
  const RtfVectors of_q = vectors(s, q, s.queries, s.key_size), of_k = vectors(s, k, s.keys, s.key_size);
  const RtfVectors of_v = vectors(s, v, s.keys, s.value_size), of_y = vectors(s, y, s.queries, s.value_size);
  const RtfVectors of_dy = vectors(s, dy, s.queries, s.value_size), of_dq = vectors(s, dq, s.queries, s.key_size);
  const RtfVectors of_dk = vectors(s, dk, s.keys, s.key_size), of_dv = vectors(s, dv, s.keys, s.value_size);
  const char* error = rtf_attention_cuda_f32(&s, &of_q, &of_k, &of_v, &of_y, log_sums.data(), scratch.data(), numbers,
                                             rtf::emulation::stream());
  if (error != nullptr) return error;
  scratch.resize(rtf_attention_grad_cuda_scratch(&s));
  error = rtf_attention_grad_cuda_f32(&s, &of_q, &of_k, &of_v, &of_y, log_sums.data(), &of_dy, &of_dq, &of_dk, &of_dv,
                                      d_tables.data(), scratch.data(), numbers, rtf::emulation::stream());
  if (error != nullptr) return error;
  return finite(joined({&y, &log_sums, &dq, &dk, &dv, &d_tables})) ? nullptr : "not finite";
}

}  // namespace

int main() {
  for (int seed = 0; seed < 8; ++seed) {
    std::srand(seed);
    RtfAttention s{};
    s.batch = 1 + seed % 2;
    s.heads = 1 + seed / 4;
    s.queries = seed % 4 == 0 ? 66 : std::rand() % 20;
    s.causal = seed % 2;
    s.keys = s.causal ? s.queries : seed % 4 == 2 ? 67 : std::rand() % 20;
    s.key_size = seed == 2 ? 67 : 1 + std::rand() % 9;
    s.value_size = seed == 5 ? 66 : 1 + std::rand() % 9;
    s.scale = 0.5f;
    s.rounded = seed % 4 == 3;
    s.dropout = seed % 3 ? 0.3f : 0.0f;
    s.seed_key = 5;
    std::vector<int32_t> lengths(s.batch);
    for (int32_t& length : lengths) length = std::rand() % (s.keys + 1);
    if (seed % 4 < 2) s.lengths = lengths.data();
    s.clipping = std::rand() % 40;
    const Array table = random_array((2 * s.clipping + 1) * s.key_size);
    if (seed % 3 != 1) s.table = table.data();
    if (const char* error = run(s, seed % 2)) return std::printf("case %d: %s\n", seed, error), 1;
  }
  std::puts("good");
}
