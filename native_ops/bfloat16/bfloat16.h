// Products of float rows with matrices of bfloat16: the rows are rounded to bfloat16, sums are float. Row-major,
// independent of TensorFlow.
//
// The bits of a matrix [depth, columns] are stored as [ceil(columns / 16)][ceil(depth / 2)][16 columns][2 steps of the
// depth]; what is beyond the matrix is 0 in the depth, and has any value in columns.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

// Numbers of a stored matrix.
int64_t rtf_bfloat16_matrix_size(int64_t depth, int64_t columns);

// Bytes of scratch memory for a product.
int64_t rtf_bfloat16_scratch_size(int64_t rows, int64_t depth);

// y [rows, columns] = x [rows, depth] * w, with x rounded half to even.
void rtf_bfloat16_product_f32(int64_t rows, int64_t depth, int64_t columns, const float* x, const uint16_t* w, float* y,
                              void* scratch, const RtfThreads* threads);
}
