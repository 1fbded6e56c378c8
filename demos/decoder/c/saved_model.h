/* Forwarding through a SavedModel, at once or block by block with states that are handed in and out. */
#ifndef SAVED_MODEL_H
#define SAVED_MODEL_H

#include "sequence.h"

enum { MOST_STATES = 64 };

/* The tensors of a SavedModel; model.json beside it lists their names. */
typedef struct {
  const char *folder, *input, *sizes, *output;
  const char *states_in[MOST_STATES], *states_out[MOST_STATES];
  int num_states;
} SavedModel;

/* A graph with its parameters. */
typedef struct {
  TF_Graph* graph;
  TF_Session* session;
} LoadedModel;

LoadedModel load_saved_model(const char* folder);

void close_saved_model(const LoadedModel* loaded);

/* Prints the outputs of batches of sequences. `block`: frames that are computed together; 0: all. */
void forward(const SavedModel* model, int batch, int block);

#endif
