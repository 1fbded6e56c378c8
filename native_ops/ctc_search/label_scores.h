// What each label that may follow adds to the score of a sequence of labels: words of a lexicon and an n-gram model,
// for searches that choose a label per step and keep the states of their hypotheses themselves.
#pragma once

#include <cstdint>
#include <vector>

#include "decoder.h"

namespace rtf {

// A state is a row of integers, zeros before the first label. It has the last label, and the ways in which the labels
// can be divided into words: with homophones, or words that are the beginning of others, there are several.
class LabelScores {
 public:
  LabelScores(const RtfCtcDecoder& decoder, const RtfLabelScores& options);

  int64_t state_size() const { return 1 + options_.readings * reading_size(); }

  // See rtf_label_scores; of one hypothesis.
  void step(int32_t label, bool last, const int32_t* before, int32_t* after, float* scores);

  // A word in a sequence of labels, from the first one to the one past its last.
  struct Word {
    int32_t word, begin, end;
    int32_t before;  // the index of the word before it; -1: none
  };

  // See rtf_label_words.
  std::vector<Word> words(const int32_t* labels, int64_t n, bool ended);

 private:
  struct Reading {
    int32_t trie = Trie::kRoot;
    float score = 0;  // without what a word that is not complete may have at best; relative to the score of the labels
    NGram::State lm;
    int32_t begin = 0, last_word = -1;  // of `words`: where the word begins, and the index of the one before it
  };

  int64_t reading_size() const { return 3 + 2 * (order() - 1); }
  int order() const { return d_.model ? d_.model->order() : 1; }
  float whole(const Reading& reading) const { return reading.score + (d_.trie ? d_.trie->best(reading.trie) : 0); }
  void load(const int32_t* state);
  void store(int32_t* state) const;
  void begin();
  void advance(int32_t label);
  template <typename Use>
  void after_label(const Reading& reading, int32_t label, const Use& use) const;
  template <typename Use>
  void into_node(const Reading& reading, int32_t node, const Use& use) const;
  float with_token(const Reading& reading, int32_t label, int32_t word, NGram::State* state) const;
  void score_labels(const Reading& reading, float* scores) const;
  float score_of_end(const Reading& reading) const;
  float at_end(const Reading& reading, int32_t* word = nullptr) const;
  int32_t found(const Reading& reading, int32_t word) const;

  const RtfCtcDecoder& d_;
  const RtfLabelScores options_;
  int32_t last_label_ = -1;
  std::vector<Reading> readings_, next_;
  bool traced_ = false;  // whether words are kept: for `words`
  int32_t position_ = 0;
  mutable std::vector<Word> words_;
};

}  // namespace rtf
