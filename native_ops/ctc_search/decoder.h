// What all searches with the same settings share.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ctc_search.h"
#include "ngram.h"
#include "phrases.h"
#include "trie.h"

struct RtfCtcDecoder {
  RtfCtcOptions options;
  std::unique_ptr<rtf::Trie> trie;        // null without a lexicon
  const rtf::NGram* model = nullptr;      // null without one
  std::vector<uint32_t> lm_indices;       // of the words, or the labels
  std::unique_ptr<rtf::Phrases> phrases;  // null without any

  RtfCtcDecoder(const RtfCtcOptions& given, const RtfLexicon* lexicon, const rtf::NGram* lm, const int32_t* indices,
                const RtfPhrases* hot);

  bool blank_separates() const { return options.blank >= 0; }
};
