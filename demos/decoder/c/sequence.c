#include "sequence.h"

static int width(const Sequence* seq) { return seq->dim ? seq->dim : 1; }

int read_sequences(Sequence* into, int most) {
  int count = 0;
  for (; count < most; ++count) {
    Sequence* seq = &into[count];
    if (scanf("%255s", seq->tag) != 1) break;
    if (scanf("%d %d", &seq->frames, &seq->dim) != 2 || seq->frames < 1 || seq->dim < 0) {
      FAIL("sequence %s: bad head line", seq->tag);
    }
    const size_t size = (size_t)seq->frames * width(seq);
    seq->values = allocate(size * sizeof(float));
    for (size_t i = 0; i < size; ++i) {
      if (scanf("%f", &seq->values[i]) != 1) FAIL("sequence %s: numbers are missing", seq->tag);
    }
  }
  return count;
}

TF_Tensor* padded(const Sequence* batch, int count, int from, int to) {
  const int dim = width(batch);
  const int64_t dims[3] = {count, to - from, batch[0].dim};
  const bool words = batch[0].dim == 0;
  TF_Tensor* tensor = new_tensor(words ? TF_INT32 : TF_FLOAT, dims, words ? 2 : 3, NULL);
  for (int b = 0; b < count; ++b) {
    for (int frame = from; frame < to && frame < batch[b].frames; ++frame) {
      for (int i = 0; i < dim; ++i) {
        const size_t at = ((size_t)b * (to - from) + frame - from) * dim + i;
        const float value = batch[b].values[(size_t)frame * dim + i];
        if (words)
          ((int32_t*)TF_TensorData(tensor))[at] = (int32_t)value;
        else
          ((float*)TF_TensorData(tensor))[at] = value;
      }
    }
  }
  return tensor;
}

TF_Tensor* sizes_within(const Sequence* batch, int count, int from, int to) {
  const int64_t dims[1] = {count};
  TF_Tensor* tensor = new_tensor(TF_INT32, dims, 1, NULL);
  for (int b = 0; b < count; ++b) {
    const int end = batch[b].frames < to ? batch[b].frames : to;
    ((int32_t*)TF_TensorData(tensor))[b] = end > from ? end - from : 0;
  }
  return tensor;
}

void free_sequences(Sequence* batch, int count) {
  for (int i = 0; i < count; ++i) free(batch[i].values);
}
