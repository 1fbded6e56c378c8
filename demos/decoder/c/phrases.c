#include "phrases.h"

#include <math.h>
#include <string.h>

#include "wav.h"

enum { LONGEST_LINE = 1 << 16 };

typedef struct {
  char* name;
  int* labels;
  int count;
} Phrase;

typedef struct {
  Phrase* phrases;
  int count, longest;
} Lexicon;

typedef struct {
  char** labels;
  int count;
} Vocabulary;

static char* copy_of(const char* text) { return strcpy(allocate(strlen(text) + 1), text); }

/* Reads a line without its end, also one of Windows; returns false behind the last one. */
static bool read_line(FILE* file, char* line, const char* path) {
  if (fgets(line, LONGEST_LINE, file) == NULL) return false;
  size_t length = strlen(line);
  if (length == LONGEST_LINE - 1) FAIL("%s: a line is too long", path);
  if (length && line[length - 1] == '\n') line[--length] = 0;
  if (length && line[length - 1] == '\r') line[length - 1] = 0;
  return true;
}

static FILE* open_text(const char* path) {
  FILE* file = fopen(path, "r");
  if (file == NULL) FAIL("%s: cannot be opened", path);
  return file;
}

/* Makes room for one more entry of an array whose size is doubled at powers of two. */
static void* grown(void* entries, int count, size_t size) {
  if (count & (count - 1)) return entries;
  entries = realloc(entries, (count ? 2 * (size_t)count : 1) * size);
  if (entries == NULL) FAIL("out of memory");
  return entries;
}

static Vocabulary read_vocabulary(const char* path) {
  Vocabulary vocabulary = {NULL, 0};
  char* line = allocate(LONGEST_LINE);
  FILE* file = open_text(path);
  while (read_line(file, line, path)) {
    vocabulary.labels = grown(vocabulary.labels, vocabulary.count, sizeof(*vocabulary.labels));
    vocabulary.labels[vocabulary.count++] = copy_of(line);
  }
  fclose(file);
  free(line);
  return vocabulary;
}

static int index_of(const Vocabulary* vocabulary, const char* label) {
  for (int i = 0; i < vocabulary->count; ++i) {
    if (strcmp(vocabulary->labels[i], label) == 0) return i;
  }
  return -1;
}

/* Reads lines of a name and its labels, separated by blanks or tabs. */
static Lexicon read_lexicon(const char* path, const Vocabulary* vocabulary) {
  Lexicon lexicon = {NULL, 0, 0};
  char* line = allocate(LONGEST_LINE);
  FILE* file = open_text(path);
  for (int number = 1; read_line(file, line, path); ++number) {
    const char* name = strtok(line, " \t");
    if (name == NULL) continue;
    Phrase phrase = {copy_of(name), NULL, 0};
    for (const char* label; (label = strtok(NULL, " \t")) != NULL;) {
      const int index = index_of(vocabulary, label);
      if (index < 0) FAIL("%s, line %d: the model has no label %s", path, number, label);
      phrase.labels = grown(phrase.labels, phrase.count, sizeof(*phrase.labels));
      phrase.labels[phrase.count++] = index;
    }
    if (phrase.count == 0) FAIL("%s, line %d: %s has no labels", path, number, name);
    if (phrase.count > lexicon.longest) lexicon.longest = phrase.count;
    lexicon.phrases = grown(lexicon.phrases, lexicon.count, sizeof(*lexicon.phrases));
    lexicon.phrases[lexicon.count++] = phrase;
  }
  if (lexicon.count == 0) FAIL("%s: no phrase in it", path);
  fclose(file);
  free(line);
  return lexicon;
}

double ctc_log_sum(const float* posteriors, int frames, int dim, int blank, const int* labels, int count,
                   double* room) {
  const int states = 2 * count + 1; /* blank, label, blank, label, ..., blank */
  double log_scale = 0;
  for (int s = 0; s < states; ++s) room[s] = 0;
  for (int t = 0; t < frames; ++t) {
    const float* frame = posteriors + (size_t)t * dim;
    double sum = 0;
    for (int s = states - 1; s >= 0; --s) { /* backwards: states before s still have their values of frame t - 1 */
      const int label = s % 2 ? labels[s / 2] : blank;
      const bool skips = s % 2 && s > 1 && labels[s / 2] != labels[s / 2 - 1];
      double reached = t ? room[s] : s < 2;
      if (t && s > 0) reached += room[s - 1];
      if (t && skips) reached += room[s - 2];
      sum += room[s] = reached * frame[label];
    }
    if (sum <= 0) return -INFINITY;
    for (int s = 0; s < states; ++s) room[s] /= sum; /* keeps the numbers within the range of double */
    log_scale += log(sum);
  }
  const double ends = room[states - 1] + (states > 1 ? room[states - 2] : 0);
  return ends > 0 ? log_scale + log(ends) : -INFINITY;
}

/* Returns posteriors [1, frames, labels]. */
static TF_Tensor* posteriors_of(const LoadedModel* loaded, const SavedModel* model, const PhraseOptions* options,
                                const Audio* audio, int value) {
  const int64_t one[2] = {1, 1}, shape[3] = {1, audio->count, 1};
  const int32_t length = audio->count, label = value, single = 1;
  TF_Output inputs[4] = {tensor_named(loaded->graph, model->input), tensor_named(loaded->graph, model->sizes)};
  TF_Tensor* values[4] = {new_tensor(TF_FLOAT, shape, 3, audio->samples), new_tensor(TF_INT32, one, 1, &length)};
  int count = 2;
  if (options->condition != NULL) {
    inputs[count] = tensor_named(loaded->graph, options->condition);
    values[count++] = new_tensor(TF_INT32, one, 2, &label);
    inputs[count] = tensor_named(loaded->graph, options->condition_sizes);
    values[count++] = new_tensor(TF_INT32, one, 1, &single);
  }
  const TF_Output output = tensor_named(loaded->graph, model->output);
  TF_Tensor* result = NULL;
  TF_Status* status = TF_NewStatus();
  TF_SessionRun(loaded->session, NULL, inputs, values, count, &output, &result, 1, NULL, 0, NULL, status);
  check(status, model->folder);
  TF_DeleteStatus(status);
  for (int i = 0; i < count; ++i) TF_DeleteTensor(values[i]);
  if (TF_NumDims(result) != 3 || TF_TensorType(result) != TF_FLOAT)
    FAIL("%s is not float [batch, time, feature]", model->output);
  return result;
}

/* Returns the first lexicon with the same value of the condition. */
static int first_with_value(const PhraseOptions* options, int lexicon) {
  int first = 0;
  while (options->lexicons[first].value != options->lexicons[lexicon].value) ++first;
  return first;
}

void find_phrases(const SavedModel* model, const PhraseOptions* options, const char* const* wavs, int count) {
  const Vocabulary vocabulary = read_vocabulary(options->vocabulary);
  Lexicon lexicons[MOST_LEXICONS];
  int longest = 0;
  for (int i = 0; i < options->num_lexicons; ++i) {
    lexicons[i] = read_lexicon(options->lexicons[i].path, &vocabulary);
    if (lexicons[i].longest > longest) longest = lexicons[i].longest;
  }
  double* room = allocate((2 * (size_t)longest + 1) * sizeof(*room));
  const LoadedModel loaded = load_saved_model(model->folder);
  for (int file = 0; file < count; ++file) {
    const Audio audio = read_wav(wavs[file]);
    if (audio.rate != options->rate) FAIL("%s: %d Hz, but the model takes %d", wavs[file], audio.rate, options->rate);
    double best = -INFINITY;
    const char *phrase = "", *condition = "";
    TF_Tensor* computed[MOST_LEXICONS]; /* once for each value of the condition, by the first lexicon with it */
    for (int i = 0; i < options->num_lexicons; ++i) {
      const int first = first_with_value(options, i);
      if (first == i) computed[i] = posteriors_of(&loaded, model, options, &audio, options->lexicons[i].value);
      TF_Tensor* posteriors = computed[first];
      const int frames = TF_Dim(posteriors, 1), dim = TF_Dim(posteriors, 2);
      const int blank = options->blank < 0 ? dim - 1 : options->blank;
      if (blank >= dim || vocabulary.count > dim) FAIL("%s has %d labels only", model->output, dim);
      for (int p = 0; p < lexicons[i].count; ++p) {
        const Phrase* asked = &lexicons[i].phrases[p];
        const double score =
            ctc_log_sum(TF_TensorData(posteriors), frames, dim, blank, asked->labels, asked->count, room);
        if (score > best) best = score, phrase = asked->name, condition = options->lexicons[i].condition;
      }
    }
    for (int i = 0; i < options->num_lexicons; ++i) {
      if (first_with_value(options, i) == i) TF_DeleteTensor(computed[i]);
    }
    printf("%s\t%s\t%s\t%.4f\n", wavs[file], condition, phrase, best);
    free(audio.samples);
  }
  close_saved_model(&loaded);
  free(room);
  for (int i = 0; i < options->num_lexicons; ++i) {
    for (int p = 0; p < lexicons[i].count; ++p) free(lexicons[i].phrases[p].name), free(lexicons[i].phrases[p].labels);
    free(lexicons[i].phrases);
  }
  for (int i = 0; i < vocabulary.count; ++i) free(vocabulary.labels[i]);
  free(vocabulary.labels);
}
