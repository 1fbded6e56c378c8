/* What all files of this program use: errors, names of tensors, arrays as tensors. */
#ifndef COMMON_H
#define COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensorflow/c/c_api.h"

/* Prints a message and ends the program. */
#define FAIL(...) (fprintf(stderr, "decoder_c: " __VA_ARGS__), fputc('\n', stderr), exit(1))

/* Ends the program with the message of TensorFlow if something failed. */
void check(TF_Status* status, const char* what);

/* Allocates, or ends the program. */
void* allocate(size_t bytes);

/* Returns the op and output of a name such as "scope/op:0" or "scope/op". */
TF_Output tensor_named(TF_Graph* graph, const char* name);

/* Returns the op of a name such as "scope/op". */
TF_Operation* op_named(TF_Graph* graph, const char* name);

/* Returns a tensor with a copy of an array. */
TF_Tensor* new_tensor(TF_DataType type, const int64_t* dims, int rank, const void* values);

/* Returns rows of a tensor, in any order: its first axis is that of hypotheses. */
TF_Tensor* take_rows(const TF_Tensor* from, const int* rows, int count);

#endif
