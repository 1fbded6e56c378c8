// Phrases with weights, as an automaton that finds all of them at once (Aho and Corasick 1975).
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ctc_search.h"

namespace rtf {

class Phrases {
 public:
  Phrases(const RtfPhrases& phrases, int32_t num_labels);

  // The state after a token. last: the token before it, -1 if there is none.
  int32_t step(int32_t state, int32_t last, int32_t token) const;

  // The weights of the phrases that a token completes; last, before: the token and the state before it. A phrase of
  // labels is complete only where its last word is, which the next label tells unless the last one ends it.
  float found(int32_t before, int32_t last, int32_t state, int32_t token) const {
    return (is_open(token) ? 0 : states_[state].found) + (is_open(last) && begins_[token] ? states_[before].found : 0);
  }

  // The weights of the phrases that the end of the sequence completes, after a token.
  float found_by_end(int32_t state, int32_t token) const { return is_open(token) ? states_[state].found : 0; }

  // The share of the weight of a phrase of which a part was found, and that of phrases whose last word may go on; 0 in
  // the first state.
  float share(int32_t state, int32_t token) const { return states_[state].share + found_by_end(state, token); }

 private:
  struct State {
    int32_t fallback = 0;  // the longest other beginning of a phrase that ends with the same tokens
    float found = 0, share = 0;
  };

  int32_t next(int32_t state, int32_t token) const;
  bool is_open(int32_t token) const { return !ends_.empty() && token >= 0 && !ends_[token]; }
  bool may_begin(int32_t last, int32_t token) const {
    return begins_.empty() || last < 0 || begins_[token] || ends_[last];
  }

  std::vector<State> states_;
  std::unordered_map<int64_t, int32_t> next_;
  std::vector<uint8_t> begins_, ends_;  // [labels], empty if tokens are words
};

}  // namespace rtf
