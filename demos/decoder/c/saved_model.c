#include "saved_model.h"

#include <string.h>

/* Returns zeros of the shape of a placeholder; its unknown sizes are those of the batch. */
static TF_Tensor* zeros_for(TF_Graph* graph, TF_Output input, int batch) {
  TF_Status* status = TF_NewStatus();
  int64_t dims[16];
  const int rank = TF_GraphGetTensorNumDims(graph, input, status);
  if (rank < 0 || rank > 16) FAIL("a state has an unknown number of axes");
  TF_GraphGetTensorShape(graph, input, dims, rank, status);
  check(status, "the shape of a state");
  for (int i = 0; i < rank; ++i) dims[i] = dims[i] < 0 ? batch : dims[i];
  TF_DeleteStatus(status);
  return new_tensor(TF_OperationOutputType(input), dims, rank, NULL);
}

/* Appends the frames of one sequence in a block to its outputs. */
static void append(float** outputs, size_t* size, const TF_Tensor* block, int b, int frames) {
  const size_t dim = TF_Dim(block, 2), stride = TF_Dim(block, 1) * dim;
  *outputs = realloc(*outputs, (*size + frames * dim + 1) * sizeof(float));
  if (*outputs == NULL) FAIL("out of memory");
  memcpy(*outputs + *size, (const float*)TF_TensorData(block) + b * stride, frames * dim * sizeof(float));
  *size += frames * dim;
}

static void print_frames(const char* tag, const float* values, size_t size, int64_t dim) {
  printf("%s %zu %lld\n", tag, size / dim, (long long)dim);
  for (size_t i = 0; i < size; ++i) printf("%.9g%c", values[i], (i + 1) % dim ? ' ' : '\n');
}

static void forward_batch(TF_Session* session, TF_Graph* graph, const SavedModel* model, const Sequence* batch,
                          int count, int block) {
  TF_Output inputs[2 + MOST_STATES] = {tensor_named(graph, model->input), tensor_named(graph, model->sizes)};
  TF_Output outputs[1 + MOST_STATES] = {tensor_named(graph, model->output)};
  TF_Tensor *values[2 + MOST_STATES], *results[1 + MOST_STATES];
  int longest = 0;
  for (int b = 0; b < count; ++b) longest = batch[b].frames > longest ? batch[b].frames : longest;
  for (int i = 0; i < model->num_states; ++i) {
    inputs[2 + i] = tensor_named(graph, model->states_in[i]);
    outputs[1 + i] = tensor_named(graph, model->states_out[i]);
    values[2 + i] = zeros_for(graph, inputs[2 + i], count);
  }
  float** frames = allocate(count * sizeof(*frames));
  size_t* sizes = allocate(count * sizeof(*sizes));
  for (int b = 0; b < count; ++b) frames[b] = NULL, sizes[b] = 0;
  int64_t dim = 1;
  TF_Status* status = TF_NewStatus();
  for (int from = 0; from < longest; from += block ? block : longest) {
    const int to = block && from + block < longest ? from + block : longest;
    values[0] = padded(batch, count, from, to);
    values[1] = sizes_within(batch, count, from, to);
    TF_SessionRun(session, NULL, inputs, values, 2 + model->num_states, outputs, results, 1 + model->num_states, NULL,
                  0, NULL, status);
    check(status, model->folder);
    if (TF_NumDims(results[0]) != 3 || TF_TensorType(results[0]) != TF_FLOAT) {
      FAIL("%s is not float [batch, time, feature]", model->output);
    }
    dim = TF_Dim(results[0], 2);
    for (int b = 0; b < count; ++b) {
      /* A network may give one frame for several; a padded output is cut at the longest sequence only. */
      const bool same = TF_Dim(results[0], 1) == to - from;
      append(&frames[b], &sizes[b], results[0], b,
             same ? ((const int32_t*)TF_TensorData(values[1]))[b] : (int)TF_Dim(results[0], 1));
    }
    for (int i = 0; i < model->num_states; ++i) {
      TF_DeleteTensor(values[2 + i]);
      values[2 + i] = results[1 + i];
    }
    TF_DeleteTensor(values[0]), TF_DeleteTensor(values[1]), TF_DeleteTensor(results[0]);
  }
  TF_DeleteStatus(status);
  for (int i = 0; i < model->num_states; ++i) TF_DeleteTensor(values[2 + i]);
  for (int b = 0; b < count; ++b) {
    print_frames(batch[b].tag, frames[b], sizes[b], dim);
    free(frames[b]);
  }
  free(frames);
  free(sizes);
}

LoadedModel load_saved_model(const char* folder) {
  const char* tags[] = {"serve"};
  TF_Status* status = TF_NewStatus();
  TF_SessionOptions* options = TF_NewSessionOptions();
  LoadedModel loaded = {TF_NewGraph(), NULL};
  loaded.session = TF_LoadSessionFromSavedModel(options, NULL, folder, tags, 1, loaded.graph, NULL, status);
  check(status, folder);
  TF_DeleteSessionOptions(options);
  TF_DeleteStatus(status);
  return loaded;
}

void close_saved_model(const LoadedModel* loaded) {
  TF_Status* status = TF_NewStatus();
  TF_CloseSession(loaded->session, status);
  TF_DeleteSession(loaded->session, status);
  TF_DeleteGraph(loaded->graph);
  TF_DeleteStatus(status);
}

void forward(const SavedModel* model, int batch, int block) {
  const LoadedModel loaded = load_saved_model(model->folder);
  Sequence* sequences = allocate(batch * sizeof(*sequences));
  for (int count; (count = read_sequences(sequences, batch)) > 0;) {
    forward_batch(loaded.session, loaded.graph, model, sequences, count, block);
    free_sequences(sequences, count);
  }
  free(sequences);
  close_saved_model(&loaded);
}
