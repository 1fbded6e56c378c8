#include "meta_graph.h"

#include <string.h>

/* Field numbers, see meta_graph.proto, saver.proto and variable.proto of TensorFlow. */
enum { GRAPH_DEF = 2, SAVER_DEF = 3, COLLECTION_DEF = 4 };
enum { MAP_KEY = 1, MAP_VALUE = 2, NODE_LIST = 1, BYTES_LIST = 2, LIST_VALUE = 1 };
enum { SAVER_FILENAME = 1, SAVER_RESTORE = 3 };
enum { VARIABLE_NAME = 1, VARIABLE_INITIALIZER = 2, VARIABLE_SNAPSHOT = 3, VARIABLE_INITIAL_VALUE = 6 };

static Bytes read_file(const char* name) {
  FILE* file = fopen(name, "rb");
  if (file == NULL) FAIL("%s can't be opened", name);
  fseek(file, 0, SEEK_END);
  const long size = ftell(file);
  rewind(file);
  uint8_t* data = allocate(size);
  if (fread(data, 1, size, file) != (size_t)size) FAIL("%s can't be read", name);
  fclose(file);
  return (Bytes){data, (size_t)size};
}

/* Returns a collection as its list of values: field NODE_LIST or BYTES_LIST; empty if there is none. */
static Bytes values_of(Bytes meta, const char* name, int kind) {
  Bytes entry;
  for (int number; next_field(&meta, &number, &entry);) {
    if (number != COLLECTION_DEF) continue;
    char* key = text_field(entry, MAP_KEY);
    const bool found = strcmp(key, name) == 0;
    free(key);
    if (found) return field(field(entry, MAP_VALUE), kind);
  }
  return (Bytes){NULL, 0};
}

void run(const MetaGraph* graph, const TF_Output* inputs, TF_Tensor* const* values, int num_inputs,
         const TF_Output* outputs, TF_Tensor** results, int num_outputs, const Names* targets) {
  const int num_targets = targets == NULL ? 0 : targets->count;
  const TF_Operation** ops = allocate(num_targets * sizeof(*ops));
  for (int i = 0; i < num_targets; ++i) ops[i] = op_named(graph->graph, targets->names[i]);
  TF_Status* status = TF_NewStatus();
  TF_SessionRun(graph->session, NULL, inputs, values, num_inputs, outputs, results, num_outputs, ops, num_targets, NULL,
                status);
  check(status, num_targets ? targets->names[0] : "running the graph");
  TF_DeleteStatus(status);
  free(ops);
}

static void restore(const MetaGraph* graph, const char* checkpoint) {
  const Bytes saver = field(graph->meta, SAVER_DEF);
  char *filename = text_field(saver, SAVER_FILENAME), *target = text_field(saver, SAVER_RESTORE);
  TF_TString text;
  TF_TString_Init(&text);
  TF_TString_Copy(&text, checkpoint, strlen(checkpoint));
  TF_Tensor* value = TF_AllocateTensor(TF_STRING, NULL, 0, sizeof(text));
  memcpy(TF_TensorData(value), &text, sizeof(text));
  const TF_Output input = tensor_named(graph->graph, filename);
  const Names targets = {&target, 1};
  run(graph, &input, &value, 1, NULL, NULL, 0, &targets);
  TF_DeleteTensor(value);
  free(filename);
  free(target);
}

MetaGraph load_meta_graph(const char* file, const char* checkpoint) {
  MetaGraph graph = {TF_NewGraph(), NULL, read_file(file), NULL, 0};
  TF_Status* status = TF_NewStatus();
  const Bytes bytes = field(graph.meta, GRAPH_DEF);
  TF_Buffer* buffer = TF_NewBufferFromString(bytes.data, bytes.size);
  TF_ImportGraphDefOptions* import = TF_NewImportGraphDefOptions();
  TF_GraphImportGraphDef(graph.graph, buffer, import, status);
  check(status, file);
  TF_DeleteImportGraphDefOptions(import);
  TF_DeleteBuffer(buffer);
  TF_SessionOptions* options = TF_NewSessionOptions();
  graph.session = TF_NewSession(graph.graph, options, status);
  check(status, file);
  TF_DeleteSessionOptions(options);
  TF_DeleteStatus(status);

  Names initializers = {NULL, 0};
  Bytes definition, rest = values_of(graph.meta, "variables", BYTES_LIST);
  for (int number; next_field(&rest, &number, &definition);) {
    if (number != LIST_VALUE) continue;
    const int count = graph.num_variables++;
    graph.variables = realloc(graph.variables, graph.num_variables * sizeof(Variable));
    initializers.names = realloc(initializers.names, graph.num_variables * sizeof(char*));
    if (graph.variables == NULL || initializers.names == NULL) FAIL("out of memory");
    Variable* variable = &graph.variables[count];
    variable->name = text_field(definition, VARIABLE_NAME);
    variable->initializer = text_field(definition, VARIABLE_INITIALIZER);
    variable->initial_value = text_field(definition, VARIABLE_INITIAL_VALUE);
    variable->snapshot = text_field(definition, VARIABLE_SNAPSHOT);
    initializers.names[initializers.count++] = variable->initializer;
  }
  if (initializers.count) run(&graph, NULL, NULL, 0, NULL, NULL, 0, &initializers);
  free(initializers.names);
  if (checkpoint != NULL) restore(&graph, checkpoint);
  return graph;
}

Names collection(const MetaGraph* graph, const char* name) {
  Names names = {NULL, 0};
  Bytes value, rest = values_of(graph->meta, name, NODE_LIST);
  for (int number; next_field(&rest, &number, &value);) {
    if (number != LIST_VALUE) continue;
    names.names = realloc(names.names, (names.count + 1) * sizeof(char*));
    if (names.names == NULL) FAIL("out of memory");
    char* text = allocate(value.size + 1);
    memcpy(text, value.data, value.size);
    text[value.size] = 0;
    names.names[names.count++] = text;
  }
  return names;
}

void free_names(Names* names) {
  for (int i = 0; i < names->count; ++i) free(names->names[i]);
  free(names->names);
}

static const Variable* variable_named(const MetaGraph* graph, const char* name) {
  const size_t length = strcspn(name, ":");
  for (int i = 0; i < graph->num_variables; ++i) {
    const char* found = graph->variables[i].name;
    if (strcspn(found, ":") == length && strncmp(found, name, length) == 0) return &graph->variables[i];
  }
  FAIL("the graph has no variable %s", name);
}

TF_Tensor* read_variable(const MetaGraph* graph, const char* name) {
  const TF_Output output = tensor_named(graph->graph, variable_named(graph, name)->snapshot);
  TF_Tensor* value = NULL;
  run(graph, NULL, NULL, 0, &output, &value, 1, NULL);
  return value;
}

void assign_variable(const MetaGraph* graph, const char* name, TF_Tensor* value) {
  const Variable* variable = variable_named(graph, name);
  const TF_Output input = tensor_named(graph->graph, variable->initial_value);
  char* target = variable->initializer;
  const Names targets = {&target, 1};
  run(graph, &input, &value, 1, NULL, NULL, 0, &targets);
}

void free_meta_graph(MetaGraph* graph) {
  TF_Status* status = TF_NewStatus();
  TF_CloseSession(graph->session, status);
  TF_DeleteSession(graph->session, status);
  TF_DeleteGraph(graph->graph);
  TF_DeleteStatus(status);
  for (int i = 0; i < graph->num_variables; ++i) {
    const Variable* variable = &graph->variables[i];
    free(variable->name), free(variable->initializer), free(variable->initial_value), free(variable->snapshot);
  }
  free(graph->variables);
  free((void*)graph->meta.data);
}
