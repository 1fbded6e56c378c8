// Prefix beam search over scores of labels per frame (Hannun et al. 2014), with a lexicon, an n-gram model and weights
// of words. Independent of TensorFlow. Models and decoders do not change once they are made, so that threads share
// them; a search belongs to one sequence.
#pragma once

#include <stdint.h>

extern "C" {

typedef struct RtfNGram RtfNGram;
typedef struct RtfCtcDecoder RtfCtcDecoder;
typedef struct RtfCtcSearch RtfCtcSearch;

// The model of an ARPA file, or a binary file of KenLM with probing hash tables, whose content has to stay where it is.
// Returns null and writes what is wrong to error [error_size] if the file is.
RtfNGram* rtf_ngram_new(const char* content, int64_t size, char* error, int64_t error_size);
void rtf_ngram_free(RtfNGram* model);
int32_t rtf_ngram_order(const RtfNGram* model);

// The ops of a graph know a model by a name. One that is shared has to exist as long as the process. A name that is not
// known is that of a file beside this library, which is opened, and shared. Returns null and writes an error if there
// is none.
void rtf_ngram_share(const RtfNGram* model, const char* name);
const RtfNGram* rtf_ngram_shared(const char* name, char* error, int64_t error_size);

// indices [n]: of n words, joined by newlines; 0 for a word that the model does not have.
void rtf_ngram_indices(const RtfNGram* model, const char* words, int64_t size, int32_t* indices);

// scores [n]: natural log of the probability of each word after those before it, the first one after <s> if begin != 0.
void rtf_ngram_scores(const RtfNGram* model, const int32_t* words, int64_t n, int32_t begin, float* scores);

// Words as sequences of labels. Spelling i is labels[offsets[i] .. offsets[i + 1]], of the word words[i].
typedef struct RtfLexicon {
  int64_t spellings;
  const int64_t* offsets;  // [spellings + 1]
  const int32_t* labels;   // [offsets[spellings]]
  const int32_t* words;    // [spellings]
  int64_t num_words;
} RtfLexicon;

// Phrases of tokens with a weight, which is added to the score of a hypothesis that has the phrase. A part of a phrase
// gets its share until the phrase can't be completed any more. Tokens are words, without a lexicon labels.
typedef struct RtfPhrases {
  int64_t phrases;
  const int64_t* offsets;  // [phrases + 1]
  const int32_t* tokens;   // [offsets[phrases]]
  const float* weights;    // [phrases]
  // [labels], where tokens are labels: a phrase begins after a label that ends a word, or at one that begins one
  const uint8_t *begins, *ends;
} RtfPhrases;

typedef struct RtfCtcOptions {
  int32_t num_labels;
  int32_t blank;             // -1: none; a label takes any number of frames, as the states of an HMM
  int32_t separator;         // a label that may stand between words and is in none; -1: none
  int32_t beam_size;         // hypotheses that are kept
  int32_t labels_per_frame;  // the best ones of a frame which may follow; 0: all
  float beam_threshold;      // hypotheses with a score so far below that of the best are left out
  float lm_scale, word_score;
  float unknown_score;              // added for each word, or label, that the model lacks
  float loop_score, forward_score;  // transitions: added for each further frame of a label, and for each label
  int32_t lm_of_labels;             // whether the model is of labels rather than words
} RtfCtcOptions;

// lexicon: null for any sequence of labels. model may be null; lm_indices [words of the lexicon, or labels]: their
// indices in it. phrases may be null. Only the model has to exist as long as the decoder.
RtfCtcDecoder* rtf_ctc_decoder_new(const RtfCtcOptions* options, const RtfLexicon* lexicon, const RtfNGram* model,
                                   const int32_t* lm_indices, const RtfPhrases* phrases);
void rtf_ctc_decoder_free(RtfCtcDecoder* decoder);

// For searches that choose one label after another, as those of attention and transducers; the decoder gives labels,
// lexicon, model and scales.
typedef struct RtfLabelScores {
  int32_t readings;   // ways to divide the labels of a hypothesis into words that are kept, the best ones
  int32_t end_label;  // ends a sequence; -1: none
} RtfLabelScores;

// The number of integers in a state.
int64_t rtf_label_state_size(const RtfCtcDecoder* decoder, const RtfLabelScores* options);

// scores [n, num_labels]: what each label that may follow adds to the score of each of n hypotheses, -inf where the
// lexicon has no word. Blanks, which may come anywhere, change no state; scores of words are those of the best reading.
// labels [n]: what came last; the first one of a hypothesis does not count. before, after [n, state size]: the states
// before and after it, zeros before the first one. last [n]: whether the next label is the last one of the sequence;
// null: none is.
void rtf_label_scores(const RtfCtcDecoder* decoder, const RtfLabelScores* options, int64_t n, const int32_t* labels,
                      const uint8_t* last, const int32_t* before, int32_t* after, float* scores);

// The words that labels [n] make up by the best reading: words, begins and ends [n], the first label of each word and
// the one past its last. ended != 0: of a sequence that ends here, so no reading ends within a word; unless all do:
// then they are without it. Returns the number of words.
int64_t rtf_label_words(const RtfCtcDecoder* decoder, const RtfLabelScores* options, const int32_t* labels, int64_t n,
                        int32_t ended, int32_t* words, int32_t* begins, int32_t* ends);

RtfCtcSearch* rtf_ctc_search_new(const RtfCtcDecoder* decoder);
void rtf_ctc_search_free(RtfCtcSearch* search);

// Continue by some frames: log_probs [frames, labels].
void rtf_ctc_search_advance(RtfCtcSearch* search, int64_t frames, const float* log_probs);

// A hypothesis. The arrays belong to the search, up to the next call.
typedef struct RtfHypothesis {
  const int32_t* labels;
  int64_t num_labels;
  const int32_t* words;      // null without a lexicon
  const int32_t* word_ends;  // the number of labels up to the end of each word
  const int32_t* word_begins;
  int64_t num_words;
  double score, acoustic, lm, word, phrase;  // score is the sum of the others, which are weighted
} RtfHypothesis;

// The best hypotheses so far, as many as there are and at most n; ended != 0: of a sequence that ends here, none that
// ends within a word, unless all do: then they are without it. Returns their number, at least 1.
int64_t rtf_ctc_search_results(RtfCtcSearch* search, int32_t ended, int64_t n, RtfHypothesis* results);

// The best alignment of labels to log_probs [frames, num_labels] by the blank and the transitions of a decoder: begins
// and ends [n], the first frame of each label and the one past its last. Returns its log score, -inf if there are too
// few frames.
double rtf_ctc_align(const RtfCtcDecoder* decoder, const float* log_probs, int64_t frames, const int32_t* labels,
                     int64_t n, int32_t* begins, int32_t* ends);
}
