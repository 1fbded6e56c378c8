// The words of a lexicon as a trie over their labels.
#pragma once

#include <cstdint>
#include <vector>

#include "ctc_search.h"

namespace rtf {

class Trie {
 public:
  static constexpr int32_t kRoot = 0, kNone = -1;

  // Children of a node are neighbours in the order of their labels, and come after it.
  struct Node {
    int32_t label;
    int32_t first_child, children;
    int32_t first_word, words;  // those that end here
  };

  Trie(const RtfLexicon& lexicon, int32_t num_labels);

  int64_t size() const { return static_cast<int64_t>(nodes_.size()); }
  const Node& operator[](int32_t node) const { return nodes_[node]; }
  int32_t child(int32_t node, int32_t label) const;
  int32_t word(int64_t index) const { return words_[index]; }

  // Set what `best` returns: the highest of the scores of the words that begin with the labels of a node.
  void look_ahead(const std::vector<float>& scores);
  float best(int32_t node) const { return best_[node]; }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> words_;
  std::vector<int32_t> of_root_;  // [labels]
  std::vector<float> best_;
};

}  // namespace rtf
