// The search over one sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "decoder.h"

// Hypotheses are sequences of labels, with a lexicon divided into words: the nodes of a tree, of which a beam is
// active. The score of a node over the frames so far is the sum over all alignments that end with a blank, and the sum
// over those that end with its last label. All other parts of the score follow from the node alone.
struct RtfCtcSearch {
  explicit RtfCtcSearch(const RtfCtcDecoder& decoder);

  void frame(const float* log_probs);
  int32_t num_labels() const { return d_.options.num_labels; }
  int64_t results(bool ended, int64_t n, RtfHypothesis* results);

 private:
  struct Node {
    uint64_t hash, parent_hash;  // of all labels and words
    int32_t parent;              // index, -1: none
    int32_t label, word;         // the last label; the word that ends with it; -1: none
    int32_t last_word;           // -1: none
    int32_t trie, phrase;        // states
    double own;                  // the scores of words, and of those that the model lacks
    double lm, phrase_score;     // not scaled; without the share of phrases that are not complete
    rtf::NGram::State lm_state;
  };

  // What the results need of a node that all hypotheses have in common.
  struct Settled {
    int32_t label, word;
    bool ends_word;  // or stands between words
  };

  struct Active {
    int32_t node;
    double blank, label;  // log sums of the alignments that end so
    double total;         // with all other parts
  };

  // A label more after an active hypothesis.
  struct Candidate {
    int32_t from, label, word, trie;
    double sum, total;
  };

  struct Ending {
    double total;
    size_t active;
    int32_t word;  // one that only lacks a separator; -1: none
    bool whole;    // whether it does not end within a word
    double lm, phrase_score, own;
  };

  double rest(const Node& node) const;
  void extend(int32_t from, const float* log_probs, double* best);
  void add(int32_t from, int32_t label, int32_t word, int32_t trie, double sum, double limit, double* best);
  double lm_score(const Node& node, int32_t label, int32_t word, rtf::NGram::State* state) const;
  int32_t phrase_after(const Node& node, int32_t label, int32_t word) const;
  float phrase_found(const Node& node, int32_t phrase, int32_t label, int32_t word) const;
  int32_t append(const Candidate& candidate);
  void choose_labels(const float* log_probs, size_t most);
  void keep_best(double best);
  void index_active();
  void free_nodes();
  int32_t find_active(uint64_t hash) const;
  void add_endings(size_t active, std::vector<Ending>* endings) const;
  Ending ending(size_t active, int32_t word, bool ended) const;
  std::vector<int32_t> path_to(int32_t node) const;
  std::vector<int32_t> words_of(const Ending& ending) const;

  const RtfCtcDecoder& d_;
  std::vector<Node> nodes_;       // each behind its parent; the first one is an ancestor of all hypotheses
  std::vector<Settled> settled_;  // up to the first node
  size_t most_nodes_;             // with so many, those that no hypothesis needs are freed
  std::vector<Active> active_, next_;
  std::vector<Candidate> candidates_;
  std::vector<int32_t> labels_;            // those that may follow in this frame, the best first
  std::vector<uint8_t> allowed_;           // [labels]
  std::vector<int32_t> table_;             // active hypotheses by their hash
  std::vector<std::vector<int32_t>> out_;  // the arrays of results
};
