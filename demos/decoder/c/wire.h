/* A reader of protocol buffers in their wire format: enough to find the parts of a MetaGraphDef, without a library. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  const uint8_t* data;
  size_t size;
} Bytes;

/* Takes the next field of a message from its rest; false at the end. `value` is empty for numbers. */
bool next_field(Bytes* rest, int* number, Bytes* value);

/* Returns the first field of this number, empty if there is none. */
Bytes field(Bytes message, int number);

/* Returns a field as a new string. */
char* text_field(Bytes message, int number);

#endif
