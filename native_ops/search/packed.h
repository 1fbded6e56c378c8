// Products of a few rows with a matrix that is packed once and then multiplied in every step of a search. Float32,
// row-major, independent of TensorFlow.
#pragma once

#include <stdint.h>

#include "../common/after_product.h"
#include "../common/parallel.h"

extern "C" {

// Floats of a packed matrix [depth, columns].
int64_t rtf_packed_size(int64_t depth, int64_t columns);

// Packs w [depth, columns], or [columns, depth] if transposed != 0.
void rtf_pack_matrix_f32(int64_t depth, int64_t columns, int transposed, const float* w, float* packed,
                         const RtfThreads* threads);

// y [rows, columns] = x [rows, depth] * packed, and what follows. Each number is one sum in the order of the depth: it
// does not depend on the other rows or on the threads. y may be the residual.
void rtf_packed_product_f32(int64_t rows, int64_t depth, int64_t columns, const float* x, const float* packed,
                            const RtfAfterProduct* after, float* y, const RtfThreads* threads);
}
