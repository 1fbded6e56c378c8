// A minimal decoder in C++: loads a native op, then a saved graph, by the C API of TensorFlow; feeds numbers to the
// graph and prints the output.
//
//   decoder OP.so SAVED_MODEL operation-of-the-output frames batch width
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tensorflow/c/c_api.h"

namespace {

void check(TF_Status* status, const char* what) {
  if (TF_GetCode(status) == TF_OK) return;
  std::printf("%s: %s\n", what, TF_Message(status));
  std::exit(1);
}

TF_Output output(TF_Graph* graph, const char* name, int index) {
  const TF_Output found{TF_GraphOperationByName(graph, name), index};
  if (found.oper == nullptr) std::printf("the graph has no %s\n", name), std::exit(1);
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const int64_t frames = std::atoi(argv[4]), batch = std::atoi(argv[5]), width = std::atoi(argv[6]);
  TF_Status* status = TF_NewStatus();
  TF_Library* library = TF_LoadLibrary(argv[1], status);
  check(status, "TF_LoadLibrary");

  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session = TF_LoadSessionFromSavedModel(options, nullptr, argv[2], tags, 1, graph, nullptr, status);
  check(status, "TF_LoadSessionFromSavedModel");

  const int64_t shape_of_z[] = {frames, batch, width};
  TF_Tensor* z = TF_AllocateTensor(TF_FLOAT, shape_of_z, 3, sizeof(float) * frames * batch * width);
  float* numbers = static_cast<float*>(TF_TensorData(z));
  for (int64_t i = 0; i < frames * batch * width; ++i) numbers[i] = std::sin(0.1f * i);
  TF_Tensor* lengths = TF_AllocateTensor(TF_INT32, &batch, 1, sizeof(int32_t) * batch);
  for (int64_t b = 0; b < batch; ++b) static_cast<int32_t*>(TF_TensorData(lengths))[b] = frames - b % frames;

  const TF_Output inputs[] = {output(graph, "serving_default_z", 0), output(graph, "serving_default_lengths", 0)};
  const TF_Output outputs[] = {output(graph, argv[3], 0)};
  TF_Tensor* values[] = {z, lengths};
  TF_Tensor* result = nullptr;
  TF_SessionRun(session, nullptr, inputs, values, 2, outputs, &result, 1, nullptr, 0, nullptr, status);
  check(status, "TF_SessionRun");
  const float* h = static_cast<const float*>(TF_TensorData(result));
  for (size_t i = 0; i < TF_TensorByteSize(result) / sizeof(float); ++i) std::printf("%.9g\n", h[i]);

  for (TF_Tensor* tensor : {z, lengths, result}) TF_DeleteTensor(tensor);
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteLibraryHandle(library);
  TF_DeleteStatus(status);
}
