// The sizes of a recurrence over a ragged batch, as the C interfaces of all of them get it.
#pragma once

#include <stdint.h>

extern "C" {

// T frames x B sequences x H units. Sequence b runs over its own first lengths[b] frames, from the first to the last one, or with
// reverse != 0 from the last to the first one.
typedef struct RtfSequences {
  int64_t frames;          // T >= 0
  int64_t batch;           // B >= 0
  int64_t units;           // H >= 1
  const int32_t* lengths;  // [B], each in 0 .. T; null: all are T
  int reverse;
} RtfSequences;
}
