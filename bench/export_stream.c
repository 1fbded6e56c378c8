/* Times an exported network frame by frame in C: see export_latency.py, which compiles and calls it.

   usage: export_stream FOLDER CONFIG.bin LIBRARY|- FRAMES INPUT_DIM UNITS NAME=TENSOR...
   Prints the CPU seconds of each of 20 rounds of FRAMES frames. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorflow/c/c_api.h>
#include <time.h>

static void check(TF_Status* status) {
  if (TF_GetCode(status) != TF_OK) {
    fprintf(stderr, "%s\n", TF_Message(status));
    exit(1);
  }
}

static TF_Output find(TF_Graph* graph, int argc, char** argv, const char* name) {
  for (int i = 7; i < argc; ++i) {
    const size_t length = strlen(name);
    if (!strncmp(argv[i], name, length) && argv[i][length] == '=') {
      char* tensor = strdup(argv[i] + length + 1);
      char* colon = strrchr(tensor, ':');
      *colon = 0;
      TF_Output found = {TF_GraphOperationByName(graph, tensor), atoi(colon + 1)};
      free(tensor);
      return found;
    }
  }
  fprintf(stderr, "no tensor for %s\n", name);
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char** argv) {
  TF_Status* status = TF_NewStatus();
  if (strcmp(argv[3], "-")) TF_LoadLibrary(argv[3], status), check(status);
  char config[256];
  FILE* file = fopen(argv[2], "rb");
  const size_t size = fread(config, 1, sizeof config, file);
  fclose(file);
  TF_SessionOptions* options = TF_NewSessionOptions();
  TF_SetConfig(options, config, size, status), check(status);
  TF_Graph* graph = TF_NewGraph();
  const char* tags[] = {"serve"};
  TF_Session* session = TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, graph, NULL, status);
  check(status);
  const int frames = atoi(argv[4]), dim = atoi(argv[5]), units = atoi(argv[6]);
  TF_Output inputs[] = {find(graph, argc, argv, "data"), find(graph, argc, argv, "data_size0"),
                        find(graph, argc, argv, "state_l_c"), find(graph, argc, argv, "state_l_h")};
  TF_Output outputs[] = {find(graph, argc, argv, "output"), find(graph, argc, argv, "state_l_c_next"),
                         find(graph, argc, argv, "state_l_h_next")};
  const int64_t data_dims[] = {1, 1, dim}, size_dims[] = {1}, state_dims[] = {1, units};
  TF_Tensor* feed[] = {TF_AllocateTensor(TF_FLOAT, data_dims, 3, 4 * (size_t)dim),
                       TF_AllocateTensor(TF_INT32, size_dims, 1, 4),
                       TF_AllocateTensor(TF_FLOAT, state_dims, 2, 4 * (size_t)units),
                       TF_AllocateTensor(TF_FLOAT, state_dims, 2, 4 * (size_t)units)};
  for (int i = 0; i < 4; ++i) memset(TF_TensorData(feed[i]), 0, TF_TensorByteSize(feed[i]));
  *(int*)TF_TensorData(feed[1]) = 1;
  for (int round = 0; round < 21; ++round) {
    const double start = now();
    for (int frame = 0; frame < frames; ++frame) {
      TF_Tensor* got[3];
      TF_SessionRun(session, NULL, inputs, feed, 4, outputs, got, 3, NULL, 0, NULL, status), check(status);
      TF_DeleteTensor(got[0]);
      for (int i = 0; i < 2; ++i) TF_DeleteTensor(feed[2 + i]), feed[2 + i] = got[1 + i];
    }
    if (round) printf("%.9f\n", (now() - start) / frames);
  }
  return 0;
}
