/* A meta graph with its variables, loaded as RASR does: graph, initialisers, checkpoint. */
#ifndef META_GRAPH_H
#define META_GRAPH_H

#include "common.h"
#include "wire.h"

typedef struct {
  char *name, *initializer, *initial_value, *snapshot;
} Variable;

typedef struct {
  TF_Graph* graph;
  TF_Session* session;
  Bytes meta;
  Variable* variables;
  int num_variables;
} MetaGraph;

/* The names in a collection of nodes. */
typedef struct {
  char** names;
  int count;
} Names;

/* Loads a meta graph and, unless `checkpoint` is NULL, the values of its variables. */
MetaGraph load_meta_graph(const char* file, const char* checkpoint);

/* Runs targets after feeding tensors, and stores the fetched ones; frees nothing. */
void run(const MetaGraph* graph, const TF_Output* inputs, TF_Tensor* const* values, int num_inputs,
         const TF_Output* outputs, TF_Tensor** results, int num_outputs, const Names* targets);

Names collection(const MetaGraph* graph, const char* name);
void free_names(Names* names);

/* Returns the value of a variable. */
TF_Tensor* read_variable(const MetaGraph* graph, const char* name);

/* Sets a variable by feeding its initial value and running its initialiser. */
void assign_variable(const MetaGraph* graph, const char* name, TF_Tensor* value);

void free_meta_graph(MetaGraph* graph);

#endif
