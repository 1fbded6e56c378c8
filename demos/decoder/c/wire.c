#include "wire.h"

#include <string.h>

#include "common.h"

enum { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 };

static uint64_t varint(Bytes* rest) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest->size == 0) FAIL("the graph file ends too early");
    const uint8_t byte = *rest->data++;
    --rest->size;
    value |= (uint64_t)(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return value;
  }
  FAIL("the graph file is damaged");
}

bool next_field(Bytes* rest, int* number, Bytes* value) {
  if (rest->size == 0) return false;
  const uint64_t key = varint(rest);
  *number = (int)(key >> 3);
  size_t size = 0, skipped = 0;
  switch (key & 7) {
    case VARINT: varint(rest); break;
    case FIXED64: skipped = 8; break;
    case FIXED32: skipped = 4; break;
    case LENGTH: size = skipped = (size_t)varint(rest); break;
    default: FAIL("the graph file is damaged");
  }
  if (skipped > rest->size) FAIL("the graph file ends too early");
  value->data = rest->data;
  value->size = size;
  rest->data += skipped;
  rest->size -= skipped;
  return true;
}

Bytes field(Bytes message, int number) {
  Bytes value = {NULL, 0};
  for (int found; next_field(&message, &found, &value);) {
    if (found == number) return value;
  }
  value.size = 0;
  return value;
}

char* text_field(Bytes message, int number) {
  const Bytes value = field(message, number);
  char* text = allocate(value.size + 1);
  if (value.size) memcpy(text, value.data, value.size);
  text[value.size] = 0;
  return text;
}
