// Cross entropy of a softmax over many labels: the plain C interface, independent of TensorFlow.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

// The target of a frame is `on` for its label and `off` for all others; they sum to 1. With c the cross entropy and p
// the probability of the label, the value of a frame is (c - entropy) * (1 - p) ^ focal.
typedef struct RtfSoftmaxCe {
  int64_t frames, labels;
  float on, off, entropy, focal;
} RtfSoftmaxCe;

// For logits z + bias, z [frames, labels], bias [labels]: the value of each frame, whether another label has a greater
// logit (1 or 0), and the gradient of the value by the logits [frames, labels], which may be z itself, or null.
// target [frames]: labels within 0 .. labels - 1. Bit-identical for any number of threads.
void rtf_softmax_ce_f32(const RtfSoftmaxCe* shape, const float* z, const float* bias, const int32_t* target,
                        float* values, float* errors, float* gradient, const RtfThreads* threads);
}
