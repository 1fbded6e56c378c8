// Attention of all heads without an array of queries x keys in memory: the plain C interface, independent of
// TensorFlow.
//
//   e[t, s] = scale q[t] . (k[s] + table[clip(s - t)])     y[t] = sum over s of keep[t, s] softmax(e[t, :])[s] v[s]
//
// for each sequence and head. What is kept for the backward pass is one number per query, the logarithm of the sum of
// the softmax; everything else is computed again.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

// The vectors of an array: data[b * batch_step + t * time_step + h * head_step + d]
typedef struct RtfVectors {
  float* data;
  int64_t batch_step, time_step, head_step;
} RtfVectors;

typedef struct RtfAttention {
  int64_t batch, heads, queries, keys;
  int64_t key_size, value_size;
  const int32_t* lengths;    // of the keys, [batch], at most keys; null: all
  int causal;                // query t sees keys 0 .. t
  float scale;               // on q
  int64_t clipping;          // of distances, if there is a table
  const float* table;        // [2 clipping + 1, key_size], or null
  int rounded;               // factors of products may be rounded to bfloat16, see below
  float dropout;             // 0: none
  uint64_t seed_key;         // of the generator Philox; weight number i, counted in [batch, heads, queries, keys], has
  uint64_t seed_counter[2];  // the i-th number of TensorFlow's stateless_random_uniform
} RtfAttention;

// With `rounded`, on a CPU with a tile unit or AVX512-BF16, the factors of all products are rounded to bfloat16, half
// to even: queries (scaled), keys, values, vectors by distance, weights (with the factors of the dropout), and the
// gradients of y and of energies. Sums, the softmax and dropout stay float, and so does everything on other CPUs, which
// multiply floats as fast. On a GPU factors are rounded, too: queries before they are scaled, and weights before they
// are divided by their sum and the factors of the dropout.

// Floats of scratch memory for at most this many threads.
int64_t rtf_attention_forward_scratch(const RtfAttention* shape, int n_threads);
int64_t rtf_attention_grad_scratch(const RtfAttention* shape, int n_threads);

// y like q, with value_size; log_sums [batch, heads, queries]. A query without keys gets 0.
void rtf_attention_f32(const RtfAttention* shape, const RtfVectors* q, const RtfVectors* k, const RtfVectors* v,
                       const RtfVectors* y, float* log_sums, float* scratch, const RtfThreads* threads);

// Gradients of all inputs, given that of y. d_tables [batch, heads, 2 clipping + 1, key_size] has to be summed over its
// first two axes; null without a table.
void rtf_attention_grad_f32(const RtfAttention* shape, const RtfVectors* q, const RtfVectors* k, const RtfVectors* v,
                            const RtfVectors* y, const float* log_sums, const RtfVectors* dy, const RtfVectors* dq,
                            const RtfVectors* dk, const RtfVectors* dv, float* d_tables, float* scratch,
                            const RtfThreads* threads);
}
