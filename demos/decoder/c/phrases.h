/* Which phrase of a lexicon is it? Each is scored by the sum over all CTC alignments of its labels. */
#ifndef PHRASES_H
#define PHRASES_H

#include "saved_model.h"

enum { MOST_LEXICONS = 16 };

/* A lexicon, and what the model is told with the audio where its phrases may be said: the language, for instance. */
typedef struct {
  const char *condition, *path;
  int value; /* for the input `condition`; 0 if there is none */
} LexiconOption;

typedef struct {
  const char *condition, *condition_sizes; /* inputs for one label of the whole recording; NULL: there is none */
  const char* vocabulary;                  /* file of labels, one a line */
  int blank, rate;                         /* blank < 0: the last label */
  LexiconOption lexicons[MOST_LEXICONS];
  int num_lexicons;
} PhraseOptions;

/* Prints for each WAV file: name, condition, phrase, log probability; of several lexicons, the best phrase of all.
 * Where the audio is too short for all phrases, condition and phrase are empty. */
void find_phrases(const SavedModel* model, const PhraseOptions* options, const char* const* wavs, int count);

/* Returns the log of the sum over all CTC alignments of labels, -INFINITY if they need more frames. Posteriors are
 * [frames, dim]; `room` has 2 * count + 1 numbers. */
double ctc_log_sum(const float* posteriors, int frames, int dim, int blank, const int* labels, int count, double* room);

#endif
