// Products of large float matrices: the plain C interface, independent of TensorFlow.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

// [rows, depth] x [depth, columns], each at least 0. A factor with transpose_... != 0 is stored transposed. If rounded
// is not 0, both factors are rounded to bfloat16, half to even; sums are float in either case.
typedef struct RtfProduct {
  int64_t rows, depth, columns;
  int transpose_a, transpose_b;
  int rounded;
} RtfProduct;

// Whether there is a tile unit that this process may use.
int rtf_product_by_tiles(void);

// Whether pairs of bfloat16 numbers are multiplied and added by one instruction, as far as the compiler knows the CPU.
int rtf_product_by_pairs(void);

// Whether vectors are multiplied and added by one instruction, as far as the compiler knows the CPU.
int rtf_product_by_fma(void);

// Floats of scratch memory for at most this many threads.
int64_t rtf_product_scratch_size(const RtfProduct* shape, int n_threads);

// y [rows, columns] = a b + bias; bias [columns] may be null. Bit-identical for any number of threads.
void rtf_product_f32(const RtfProduct* shape, const float* a, const float* b, const float* bias, float* y,
                     float* scratch, const RtfThreads* threads);
}
