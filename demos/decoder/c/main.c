/* A decoder in C for what `returnn-tf export` writes, over TensorFlow's C API; see the Makefile beside it.
 *
 * Forwarding, language models with --state, and phrases use the target saved_model; search uses the target steps. */
#include <string.h>

#include "beam_search.h"
#include "phrases.h"
#include "saved_model.h"

static const char* const kUsage =
    "usage: decoder_c forward FOLDER --input NAME --sizes NAME --output NAME [--state IN OUT ...]\n"
    "                 [--library F.so ...] [--batch N] [--block N]   < sequences\n"
    "       decoder_c search GRAPH.meta CHECKPOINT --input NAME --sizes NAME [--library F.so ...]\n"
    "                 [--beam-size N] [--start-label N] [--end-label N] [--max-steps N] [--length-exponent X]   < "
    "sequences\n"
    "       decoder_c phrases FOLDER --input NAME --sizes NAME --output NAME --vocabulary FILE --rate HZ\n"
    "                 --lexicon VALUE NAME FILE ... [--condition NAME SIZES] [--blank N] [--library F.so ...]\n"
    "                 -- FILE.wav ...                    VALUE is the label of --condition; without it, -\n"
    "A sequence is a line \"tag frames dim\" and its numbers; word ids have dim 0.\n";

static void usage(const char* reason) {
  fprintf(stderr, "decoder_c: %s\n%s", reason, kUsage);
  exit(2);
}

static void load_library(const char* file) {
  TF_Status* status = TF_NewStatus();
  TF_LoadLibrary(file, status);
  check(status, file);
  TF_DeleteStatus(status);
}

int main(int argc, char** argv) {
  SavedModel model = {0};
  SearchOptions options = {.beam_size = 12, .length_exponent = 1};
  const char* files[2] = {NULL, NULL};
  PhraseOptions phrases = {.blank = -1};
  const char* const* wavs = NULL;
  const char* values[MOST_LEXICONS]; /* of the condition, as they are given */
  int batch = 1, block = 0, num_files = 0, num_wavs = 0;
  if (argc < 3) usage("too few arguments");
  const bool searches = strcmp(argv[1], "search") == 0, finds_phrases = strcmp(argv[1], "phrases") == 0;
  if (!searches && !finds_phrases && strcmp(argv[1], "forward") != 0) {
    usage("the first argument is forward, search or phrases");
  }
  for (int i = 2; i < argc; ++i) {
    const char* name = argv[i];
    if (name[0] != '-') {
      if (num_files == (searches ? 2 : 1)) usage("too many files");
      files[num_files++] = name;
      continue;
    }
    if (finds_phrases && strcmp(name, "--") == 0) {
      wavs = (const char* const*)argv + i + 1;
      num_wavs = argc - i - 1;
      break;
    }
    const bool pair = strcmp(name, "--state") == 0, condition = strcmp(name, "--condition") == 0;
    const bool lexicon = strcmp(name, "--lexicon") == 0;
    if (i + 1 + (pair || condition) + 2 * lexicon >= argc) usage(name);
    const char* value = argv[++i];
    if (strcmp(name, "--input") == 0)
      model.input = options.input = value;
    else if (strcmp(name, "--sizes") == 0)
      model.sizes = options.sizes = value;
    else if (strcmp(name, "--output") == 0)
      model.output = value;
    else if (strcmp(name, "--library") == 0)
      load_library(value);
    else if (strcmp(name, "--batch") == 0)
      batch = atoi(value);
    else if (strcmp(name, "--block") == 0)
      block = atoi(value);
    else if (strcmp(name, "--beam-size") == 0)
      options.beam_size = atoi(value);
    else if (strcmp(name, "--start-label") == 0)
      options.start_label = atoi(value);
    else if (strcmp(name, "--end-label") == 0)
      options.end_label = atoi(value);
    else if (strcmp(name, "--max-steps") == 0)
      options.max_steps = atoi(value);
    else if (strcmp(name, "--length-exponent") == 0)
      options.length_exponent = atof(value);
    else if (strcmp(name, "--vocabulary") == 0)
      phrases.vocabulary = value;
    else if (strcmp(name, "--rate") == 0)
      phrases.rate = atoi(value);
    else if (strcmp(name, "--blank") == 0)
      phrases.blank = atoi(value);
    else if (condition) {
      phrases.condition = value;
      phrases.condition_sizes = argv[++i];
    } else if (lexicon) {
      if (phrases.num_lexicons == MOST_LEXICONS) usage("too many lexicons");
      LexiconOption* option = &phrases.lexicons[phrases.num_lexicons++];
      values[phrases.num_lexicons - 1] = value;
      option->condition = argv[++i];
      option->path = argv[++i];
    } else if (pair) {
      if (model.num_states == MOST_STATES) usage("too many states");
      model.states_in[model.num_states] = value;
      model.states_out[model.num_states++] = argv[++i];
    } else
      usage(name);
  }
  if (num_files != (searches ? 2 : 1) || options.input == NULL || options.sizes == NULL) usage("a name is missing");
  if (batch < 1 || block < 0 || options.beam_size < 1 || options.max_steps < 0) usage("a number is out of range");
  if (finds_phrases) {
    if (model.output == NULL || phrases.vocabulary == NULL) usage("--output or --vocabulary is missing");
    if (phrases.rate < 1 || phrases.num_lexicons == 0) usage("--rate or --lexicon is missing");
    if (num_wavs == 0) usage("no audio");
    for (int i = 0; i < phrases.num_lexicons; ++i) {
      char* end = NULL;
      if (phrases.condition == NULL) {
        if (strcmp(values[i], "-") != 0) usage("--lexicon: without --condition, VALUE has to be -");
        continue;
      }
      const long value = strtol(values[i], &end, 10);
      phrases.lexicons[i].value = (int)value;
      if (end == values[i] || *end != 0 || value != phrases.lexicons[i].value)
        usage("--lexicon: VALUE has to be a number, for the input of --condition");
    }
    model.folder = files[0];
    find_phrases(&model, &phrases, wavs, num_wavs);
    return 0;
  }
  if (!searches) {
    if (model.output == NULL) usage("--output is missing");
    model.folder = files[0];
    forward(&model, batch, block);
    return 0;
  }
  MetaGraph graph = load_meta_graph(files[0], files[1]);
  for (Sequence seq; read_sequences(&seq, 1) == 1; free_sequences(&seq, 1)) search(&graph, &seq, &options);
  free_meta_graph(&graph);
  return 0;
}
