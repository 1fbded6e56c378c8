#include "beam_search.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* A hypothesis. `row` is its place among those that the graph computes, -1 once it has ended. */
typedef struct {
  int *labels, length, row;
  double score;
} Entry;

/* The continuation of an entry by a label. */
typedef struct {
  double score;
  int from, label;
} Candidate;

static int by_score(const void* a, const void* b) {
  const double x = ((const Candidate*)a)->score, y = ((const Candidate*)b)->score;
  return (x < y) - (x > y);
}

static char* only(const MetaGraph* graph, const char* name) {
  Names names = collection(graph, name);
  if (names.count != 1)
    FAIL("the graph has %d entries in the collection %s, but this search needs one", names.count, name);
  char* found = names.names[0];
  free(names.names);
  return found;
}

static void encode(const MetaGraph* graph, const Sequence* seq, const SearchOptions* options) {
  Names ops = collection(graph, "encode_ops");
  const TF_Output inputs[] = {tensor_named(graph->graph, options->input), tensor_named(graph->graph, options->sizes)};
  TF_Tensor* values[] = {padded(seq, 1, 0, seq->frames), sizes_within(seq, 1, 0, seq->frames)};
  run(graph, inputs, values, 2, NULL, NULL, 0, &ops);
  TF_DeleteTensor(values[0]), TF_DeleteTensor(values[1]);
  free_names(&ops);
}

static void run_collection(const MetaGraph* graph, const char* name) {
  Names ops = collection(graph, name);
  if (ops.count) run(graph, NULL, NULL, 0, NULL, NULL, 0, &ops);
  free_names(&ops);
}

/* Begins a step of `count` hypotheses, and returns whether the network makes it: it may have reached its max_seq_len.
 */
static bool begin_step(const MetaGraph* graph, const int32_t* last, int count) {
  char* label_var = only(graph, "decoder_input_vars");
  const int64_t dims[] = {count};
  TF_Tensor* labels = new_tensor(TF_INT32, dims, 1, last);
  assign_variable(graph, label_var, labels);
  TF_DeleteTensor(labels);
  free(label_var);
  run_collection(graph, "update_ops");
  TF_Tensor* cond = read_variable(graph, "IO/cond");
  const bool goes_on = *(const bool*)TF_TensorData(cond);
  TF_DeleteTensor(cond);
  return goes_on;
}

/* Computes the scores of the next labels of the hypotheses, float [count, labels]. */
static TF_Tensor* step_scores(const MetaGraph* graph) {
  char* score_var = only(graph, "decoder_output_vars");
  run_collection(graph, "decode_ops");
  TF_Tensor* scores = read_variable(graph, score_var);
  free(score_var);
  return scores;
}

/* Keeps the states of some hypotheses, which the next step continues. */
static void keep_states(const MetaGraph* graph, const int* rows, int count) {
  Names names = collection(graph, "_RETURNN_state_vars");
  for (int i = 0; i < names.count && count; ++i) {
    TF_Tensor* state = read_variable(graph, names.names[i]);
    TF_Tensor* kept = take_rows(state, rows, count);
    assign_variable(graph, names.names[i], kept);
    TF_DeleteTensor(state), TF_DeleteTensor(kept);
  }
  free_names(&names);
}

/* Returns all continuations of the entries, best first. */
static Candidate* candidates(const Entry* entries, int count, const TF_Tensor* scores, int step,
                             const SearchOptions* options, int* found) {
  const int labels = (int)TF_Dim(scores, 1);
  Candidate* all = allocate((size_t)count * labels * sizeof(*all));
  *found = 0;
  for (int from = 0; from < count; ++from) {
    const Entry* entry = &entries[from];
    if (entry->row < 0) { /* ended: its score is scaled as if it had as many labels as the others */
      const double factor = pow((step + 1.0) / step, options->length_exponent);
      all[(*found)++] = (Candidate){entry->score * factor, from, options->end_label};
      continue;
    }
    const float* row = (const float*)TF_TensorData(scores) + (size_t)entry->row * labels;
    for (int label = 0; label < labels; ++label) all[(*found)++] = (Candidate){entry->score + row[label], from, label};
  }
  qsort(all, *found, sizeof(*all), by_score);
  return all;
}

void search(const MetaGraph* graph, const Sequence* seq, const SearchOptions* options) {
  const int beam = options->beam_size;
  Entry* entries = allocate(beam * sizeof(*entries));
  Entry* next = allocate(beam * sizeof(*next));
  int32_t* last = allocate(beam * sizeof(*last));
  int* rows = allocate(beam * sizeof(*rows));
  entries[0] = (Entry){allocate(sizeof(int)), 0, 0, 0};
  last[0] = options->start_label;
  int count = 1, running = 1, step = 0;
  encode(graph, seq, options);
  for (; running && (!options->max_steps || step < options->max_steps); ++step) {
    if (!begin_step(graph, last, running)) break;
    TF_Tensor* scores = step_scores(graph);
    int found;
    Candidate* all = candidates(entries, count, scores, step, options, &found);
    const int kept = found < beam ? found : beam;
    running = 0;
    for (int i = 0; i < kept; ++i) {
      const Entry* from = &entries[all[i].from];
      Entry* entry = &next[i];
      *entry = (Entry){allocate((from->length + 1) * sizeof(int)), from->length, -1, all[i].score};
      memcpy(entry->labels, from->labels, from->length * sizeof(int));
      if (from->row < 0 || all[i].label == options->end_label) continue;
      entry->labels[entry->length++] = all[i].label;
      entry->row = running;
      last[running] = all[i].label;
      rows[running++] = from->row;
    }
    for (int i = 0; i < count; ++i) free(entries[i].labels);
    Entry* old = entries;
    entries = next, next = old, count = kept;
    keep_states(graph, rows, running);
    TF_DeleteTensor(scores);
    free(all);
  }
  int longest = 0; /* labels of a hypothesis; the end, which a limit may have cut off, counts too */
  for (int i = 0; i < count; ++i) longest = entries[i].length > longest ? entries[i].length : longest;
  printf("%s %.6f", seq->tag, entries[0].score / pow(longest + 1, options->length_exponent));
  for (int i = 0; i < entries[0].length; ++i) printf(" %d", entries[0].labels[i]);
  printf("\n");
  for (int i = 0; i < count; ++i) free(entries[i].labels);
  free(entries), free(next), free(last), free(rows);
}
