// What all searches with the same settings share.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "ctc_search.h"
#include "ngram.h"
#include "phrases.h"
#include "trie.h"

struct RtfCtcDecoder {
  RtfCtcOptions options;
  std::unique_ptr<rtf::Trie> trie;    // null without a lexicon
  const rtf::NGram* model = nullptr;  // null without one
  std::vector<uint32_t> lm_indices;   // of the words, or the labels
  std::vector<float> alone;  // of a model of labels without a lexicon: the score of each, whatever is before it
  std::unique_ptr<rtf::Phrases> phrases;  // null without any

  RtfCtcDecoder(const RtfCtcOptions& given, const RtfLexicon* lexicon, const rtf::NGram* lm, const int32_t* indices,
                const RtfPhrases* hot);

  // What the options add for a label, or the word that ends with it; -1: none.
  float own_score(int32_t label, int32_t word) const {
    const int32_t token = options.lm_of_labels ? label : word;
    const bool is_unknown = model && token >= 0 && lm_indices[token] == rtf::NGram::kUnknown;
    return (word >= 0 || !trie ? options.word_score : 0) + (is_unknown ? options.unknown_score : 0);
  }

  // Of a model of labels, those that it may have after a word of the model. It is looked for once, by any thread.
  const std::vector<int32_t>& followers(uint32_t word) const;

  bool blank_separates() const { return options.blank >= 0; }

 private:
  mutable std::mutex mutex_;
  mutable std::unordered_map<uint32_t, std::vector<int32_t>> followers_;  // elements stay where they are
};
