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

  // The weights of the phrases that end in a state.
  float found(int32_t state) const { return states_[state].found; }

  // The share of the weight of a phrase of which a part was found; 0 in the first state.
  float share(int32_t state) const { return states_[state].share; }

 private:
  struct State {
    int32_t fallback = 0;  // the longest other beginning of a phrase that ends with the same tokens
    float found = 0, share = 0;
  };

  int32_t next(int32_t state, int32_t token) const;
  bool may_begin(int32_t last, int32_t token) const {
    return begins_.empty() || last < 0 || begins_[token] || ends_[last];
  }

  std::vector<State> states_;
  std::unordered_map<int64_t, int32_t> next_;
  std::vector<uint8_t> begins_, ends_;  // [labels], empty if tokens are words
};

}  // namespace rtf
