// The best labels of each hypothesis, without probabilities of the others. Float32, independent of TensorFlow.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

// values and indices [rows, count]: the highest entries of each row of x [rows, labels], highest first, equal ones in
// their order; count is at most labels. log_sums [rows]: log(sum over labels of exp(x - the highest entry)).
void rtf_best_labels_f32(int64_t rows, int64_t labels, int64_t count, const float* x, float* values, int32_t* indices,
                         float* log_sums, const RtfThreads* threads);
}
