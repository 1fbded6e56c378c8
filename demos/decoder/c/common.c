#include "common.h"

#include <string.h>

void check(TF_Status* status, const char* what) {
  if (TF_GetCode(status) != TF_OK) FAIL("%s: %s", what, TF_Message(status));
}

void* allocate(size_t bytes) {
  void* memory = malloc(bytes ? bytes : 1);
  if (memory == NULL) FAIL("out of memory");
  return memory;
}

TF_Operation* op_named(TF_Graph* graph, const char* name) {
  char op[1024];
  const size_t length = strcspn(name, ":");
  if (length >= sizeof(op)) FAIL("the name %s is too long", name);
  memcpy(op, name, length);
  op[length] = 0;
  TF_Operation* found = TF_GraphOperationByName(graph, op);
  if (found == NULL) FAIL("the graph has no op %s", op);
  return found;
}

TF_Output tensor_named(TF_Graph* graph, const char* name) {
  const char* colon = strchr(name, ':');
  TF_Output output = {op_named(graph, name), colon == NULL ? 0 : atoi(colon + 1)};
  return output;
}

TF_Tensor* new_tensor(TF_DataType type, const int64_t* dims, int rank, const void* values) {
  size_t bytes = TF_DataTypeSize(type);
  for (int i = 0; i < rank; ++i) bytes *= dims[i];
  TF_Tensor* tensor = TF_AllocateTensor(type, dims, rank, bytes);
  if (tensor == NULL) FAIL("out of memory");
  if (values != NULL)
    memcpy(TF_TensorData(tensor), values, bytes);
  else
    memset(TF_TensorData(tensor), 0, bytes);
  return tensor;
}

TF_Tensor* take_rows(const TF_Tensor* from, const int* rows, int count) {
  int64_t dims[16];
  const int rank = TF_NumDims(from);
  if (rank < 1 || rank > 16) FAIL("a state of rank %d has no axis of hypotheses", rank);
  for (int i = 0; i < rank; ++i) dims[i] = TF_Dim(from, i);
  const size_t bytes = dims[0] ? TF_TensorByteSize(from) / dims[0] : 0;
  dims[0] = count;
  TF_Tensor* to = new_tensor(TF_TensorType(from), dims, rank, NULL);
  for (int i = 0; i < count; ++i) {
    memcpy((char*)TF_TensorData(to) + i * bytes, (const char*)TF_TensorData(from) + rows[i] * bytes, bytes);
  }
  return to;
}
