// The sizes of a recurrence over a ragged batch, common to all C interfaces.
#pragma once

#include <stdint.h>

extern "C" {

// T frames x B sequences x H units. Sequence b runs over its own first lengths[b] frames, from first to last, or with
// reverse != 0 from last to first.
typedef struct RtfSequences {
  int64_t frames;          // T >= 0
  int64_t batch;           // B >= 0
  int64_t units;           // H >= 1
  const int32_t* lengths;  // [B], each in 0 .. T; null: all are T
  int reverse;
} RtfSequences;
}
