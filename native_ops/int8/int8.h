// Products of float rows with a matrix of int8: the rows are rounded to int8 when they are multiplied, sums are exact
// integers. Row-major, independent of TensorFlow; the same bits on every CPU, except that a bias may be added with one
// rounding less.
//
// A matrix w [depth, columns] is stored as w = (stored - 128) * scales[column], stored in 1 .. 255. The bytes are
// [ceil(columns / 16)][ceil(depth / 4)][16 columns][4 steps of the depth]; what is beyond the matrix has any value in
// columns, and 128 in the depth.
#pragma once

#include <stdint.h>

#include "../common/after_product.h"
#include "../common/parallel.h"

extern "C" {

// Bytes of a stored matrix.
int64_t rtf_int8_matrix_size(int64_t depth, int64_t columns);

// Bytes of scratch memory for a product, which begin at a multiple of 4.
int64_t rtf_int8_scratch_size(int64_t rows, int64_t depth);

// y [rows, columns] = x [rows, depth] * w, and what follows; y may be the residual. With largest = max |x[row]|, a row
// is rounded, half to even, to q = x * (127 / largest), and y = (sum over the depth of q * (stored - 128)) * (largest /
// 127 * scales[column]), in float32 from left to right. A row with NaN or infinity gives NaN; one whose largest number
// is below 2^-100, 0. The depth is at most 2^31 / 127^2, about 133 000, for which sums fit in int32.
void rtf_int8_product_f32(int64_t rows, int64_t depth, int64_t columns, const float* x, const uint8_t* w,
                          const float* scales, const RtfAfterProduct* after, float* y, void* scratch,
                          const RtfThreads* threads);
}
