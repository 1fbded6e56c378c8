/* Sequences on the standard input: a line "tag frames dim", then the numbers; word ids have dim 0. */
#ifndef SEQUENCE_H
#define SEQUENCE_H

#include <stdbool.h>

#include "common.h"

typedef struct {
  char tag[256];
  int frames, dim;
  float* values; /* [frames, dim] */
} Sequence;

/* Reads the next sequences; returns how many there were. */
int read_sequences(Sequence* into, int most);

/* Returns frames [from, to) of sequences, padded by zeros: float [batch, frames, dim], int32 [batch, frames] for dim 0.
 */
TF_Tensor* padded(const Sequence* batch, int count, int from, int to);

/* Returns the number of frames of each sequence in [from, to), int32 [batch]. */
TF_Tensor* sizes_within(const Sequence* batch, int count, int from, int to);

void free_sequences(Sequence* batch, int count);

#endif
