#include "trie.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace rtf {

Trie::Trie(const RtfLexicon& lexicon, int32_t num_labels) : of_root_(num_labels, kNone) {
  const auto size = [&](int32_t i) { return lexicon.offsets[i + 1] - lexicon.offsets[i]; };
  const auto at = [&](int32_t i) { return lexicon.labels + lexicon.offsets[i]; };
  std::vector<int32_t> order(lexicon.spellings);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int compared = std::lexicographical_compare(at(a), at(a) + size(a), at(b), at(b) + size(b))   ? -1
                         : std::lexicographical_compare(at(b), at(b) + size(b), at(a), at(a) + size(a)) ? 1
                                                                                                        : 0;
    return compared ? compared < 0 : lexicon.words[a] < lexicon.words[b];
  });
  struct Range {
    int64_t begin, end, depth;  // spellings that share their first labels
  };
  std::vector<Range> ranges{{0, lexicon.spellings, 0}};
  nodes_.push_back({kNone, 0, 0, 0, 0});
  for (size_t n = 0; n < nodes_.size(); ++n) {
    auto [begin, end, depth] = ranges[n];
    nodes_[n].first_word = static_cast<int32_t>(words_.size());
    for (; begin < end && size(order[begin]) == depth; ++begin) {
      const int32_t word = lexicon.words[order[begin]];
      if (static_cast<int32_t>(words_.size()) == nodes_[n].first_word || words_.back() != word) words_.push_back(word);
    }
    nodes_[n].words = static_cast<int32_t>(words_.size()) - nodes_[n].first_word;
    nodes_[n].first_child = static_cast<int32_t>(nodes_.size());
    while (begin < end) {
      const int32_t label = at(order[begin])[depth];
      int64_t next = begin;
      while (next < end && at(order[next])[depth] == label) ++next;
      if (n == kRoot) of_root_[label] = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({label, 0, 0, 0, 0});
      ranges.push_back({begin, next, depth + 1});
      begin = next;
    }
    nodes_[n].children = static_cast<int32_t>(nodes_.size()) - nodes_[n].first_child;
  }
}

int32_t Trie::child(int32_t node, int32_t label) const {
  if (node == kRoot) return of_root_[label];
  const Node& parent = nodes_[node];
  const auto first = nodes_.begin() + parent.first_child, last = first + parent.children;
  const auto found = std::lower_bound(first, last, label, [](const Node& n, int32_t x) { return n.label < x; });
  return found != last && found->label == label ? static_cast<int32_t>(found - nodes_.begin()) : kNone;
}

void Trie::look_ahead(const std::vector<float>& scores) {
  best_.assign(nodes_.size(), -std::numeric_limits<float>::infinity());
  for (int64_t n = static_cast<int64_t>(nodes_.size()) - 1; n >= 0; --n) {
    const Node& node = nodes_[n];
    for (int32_t i = 0; i < node.words; ++i) best_[n] = std::max(best_[n], scores[words_[node.first_word + i]]);
    for (int32_t i = 0; i < node.children; ++i) best_[n] = std::max(best_[n], best_[node.first_child + i]);
  }
}

}  // namespace rtf
