// Update rules of optimizers over all parameters in one call, and the norm of all gradients. Float32, independent of
// TensorFlow.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

// The slots of each rule, and the numbers that it takes after the learning rate, in their order:
enum RtfRule {
  RTF_SGD,               // -
  RTF_MOMENTUM,          // accum; momentum, nesterov
  RTF_KERAS_SGD,         // momentum; momentum, nesterov
  RTF_ADAM,              // m v; beta1^t, beta2^t, beta1, beta2, epsilon, nesterov, weight decay
  RTF_AMSGRAD,           // m v vhat; beta1^t, beta2^t, beta1, beta2, epsilon
  RTF_NADAM_KERAS,       // m v; factors of m and v, beta1, beta2, epsilon; the factor of the gradient as the rate
  RTF_RMSPROP,           // rms momentum; decay, momentum, epsilon
  RTF_RMSPROP_CENTERED,  // rms momentum mean; likewise
  RTF_ADAGRAD,           // accum
  RTF_ADADELTA,          // accum accum_update; rho, epsilon
  RTF_RADAM,             // m v; factors of m and v, whether v counts, beta1, beta2, epsilon, weight decay
  RTF_LION,              // m; beta1, beta2, weight decay
  RTF_SCHEDULE_FREE,     // offset v; weight of the newest z, factor of v, beta1, beta2, epsilon, weight decay
  RTF_AVERAGE,           // -; moves a value by the rate towards what stands for its gradient
  RTF_LAMB,              // m v; factors of m and v, beta1, beta2, epsilon, weight decay
  RTF_SCALED_ADAM,       // m v scale_m scale_v; beta1, beta2, epsilon, factor on the rate of scales, least scale
  RTF_ADAFACTOR,         // rows columns; weight of a new square, epsilon1, epsilon2, threshold, scaled, weight decay
  RTF_RULES,
};

enum { kRtfMaxSlots = 4, kRtfMaxNumbers = 8 };

// The number of slots and of numbers (with the rate) of a rule.
int rtf_update_slots(int rule);
int rtf_update_numbers(int rule);

typedef struct RtfParameter {
  int64_t size;
  int64_t columns;  // of a matrix, for RTF_ADAFACTOR
  float* value;
  const float* gradient;
  float* slots[kRtfMaxSlots];
} RtfParameter;

// numbers[0] is the learning rate. All gradients are multiplied by a factor, and rounded, before the rule sees them.
void rtf_update_f32(int rule, const float* numbers, const float* factor, const RtfParameter* parameters, int64_t count,
                    const RtfThreads* threads);

// The sum of the squares of all entries, the same for any number of threads. NaN and infinity propagate.
double rtf_sum_of_squares_f32(const float* const* arrays, const int64_t* sizes, int64_t count,
                              const RtfThreads* threads);

// The same on a GPU: arrays, numbers, factor, scratch and norm in its memory, arrays of pointers and sizes in that of
// the host; stream is a cudaStream_t. Returns null, or the text of an error.
int64_t rtf_update_cuda_scratch_size(int rule, const RtfParameter* parameters, int64_t count);
const char* rtf_update_cuda_f32(int rule, const float* numbers, const float* factor, const RtfParameter* parameters,
                                int64_t count, float* scratch, void* stream);

// The root of the sum of the squares.
int64_t rtf_norm_of_all_cuda_scratch_size(const int64_t* sizes, int64_t count);
const char* rtf_norm_of_all_cuda_f32(const float* const* arrays, const int64_t* sizes, int64_t count, float* norm,
                                     float* scratch, void* stream);

const char* rtf_copy_cuda(void* to, const void* from, int64_t bytes, void* stream);
}
