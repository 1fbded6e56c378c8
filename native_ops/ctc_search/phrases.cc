#include "phrases.h"

#include <algorithm>

namespace rtf {
namespace {

int64_t key_of(int32_t state, int32_t token) {
  return static_cast<int64_t>(state) << 32 | static_cast<uint32_t>(token);
}

}  // namespace

Phrases::Phrases(const RtfPhrases& phrases, int32_t num_labels) : states_(1) {
  if (phrases.begins) {
    begins_.assign(phrases.begins, phrases.begins + num_labels);
    ends_.assign(phrases.ends, phrases.ends + num_labels);
  }
  std::vector<int32_t> parents{0}, tokens{-1};
  for (int64_t p = 0; p < phrases.phrases; ++p) {
    int32_t state = 0;
    const int64_t begin = phrases.offsets[p], end = phrases.offsets[p + 1];
    for (int64_t i = begin; i < end; ++i) {
      const auto entry = next_.emplace(key_of(state, phrases.tokens[i]), static_cast<int32_t>(states_.size()));
      if (entry.second) {
        states_.emplace_back();
        parents.push_back(state);
        tokens.push_back(phrases.tokens[i]);
      }
      state = entry.first->second;
      const float share = phrases.weights[p] * static_cast<float>(i + 1 - begin) / static_cast<float>(end - begin);
      if (i + 1 < end) states_[state].share = std::max(states_[state].share, share);
    }
    states_[state].found = phrases.weights[p];
  }
  // shorter beginnings first, as the fallback of a state is one
  std::vector<std::vector<int32_t>> children(states_.size());
  for (size_t s = 1; s < states_.size(); ++s) children[parents[s]].push_back(static_cast<int32_t>(s));
  std::vector<int32_t> order{0};
  for (size_t i = 0; i < order.size(); ++i)
    for (int32_t s : children[order[i]]) order.push_back(s);
  for (size_t i = 1; i < order.size(); ++i) {
    const int32_t s = order[i], parent = parents[s];
    if (parent != 0) states_[s].fallback = step(states_[parent].fallback, tokens[parent], tokens[s]);
    const State& fallback = states_[states_[s].fallback];
    states_[s].found += fallback.found;
    states_[s].share = std::max(states_[s].share, fallback.share);
  }
}

int32_t Phrases::next(int32_t state, int32_t token) const {
  const auto entry = next_.find(key_of(state, token));
  return entry == next_.end() ? -1 : entry->second;
}

int32_t Phrases::step(int32_t state, int32_t last, int32_t token) const {
  for (;; state = states_[state].fallback) {
    const int32_t to = state != 0 || may_begin(last, token) ? next(state, token) : -1;
    if (to >= 0 || state == 0) return std::max(to, 0);
  }
}

}  // namespace rtf
