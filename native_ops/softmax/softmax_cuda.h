// Cross entropy of a softmax on a GPU: the same as softmax.h, with pointers to its memory.
#pragma once

#include "softmax.h"

extern "C" {

// A frame whose label is none of them gets a value and a gradient of NaN, since the host can't look at it. Returns
// null, or the text of an error.
const char* rtf_softmax_ce_cuda_f32(const RtfSoftmaxCe* shape, const float* z, const float* bias, const int32_t* target,
                                    float* values, float* errors, float* gradient, void* stream);
}
