#include "decoder.h"

RtfCtcDecoder::RtfCtcDecoder(const RtfCtcOptions& given, const RtfLexicon* lexicon, const rtf::NGram* lm,
                             const int32_t* indices, const RtfPhrases* hot)
    : options(given), model(lm) {
  if (lexicon) trie = std::make_unique<rtf::Trie>(*lexicon, options.num_labels);
  if (hot && hot->phrases > 0) phrases = std::make_unique<rtf::Phrases>(*hot, options.num_labels);
  if (model) {
    const bool of_words = trie && !options.lm_of_labels;
    const int64_t n = of_words ? lexicon->num_words : options.num_labels;
    lm_indices.assign(indices, indices + n);
  }
  if (model && !trie)
    for (int32_t label = 0; label < options.num_labels; ++label)
      alone.push_back(own_score(label, -1) + options.lm_scale * model->score(lm_indices[label]));
  if (trie) {
    std::vector<float> scores(lexicon->num_words);
    for (int64_t word = 0; word < lexicon->num_words; ++word) {
      scores[word] = own_score(-1, static_cast<int32_t>(word));
      if (model && !options.lm_of_labels) scores[word] += options.lm_scale * model->score(lm_indices[word]);
      if (phrases) {
        const int32_t token = static_cast<int32_t>(word), state = phrases->step(0, -1, token);
        scores[word] += phrases->found(0, -1, state, token) + phrases->share(state, token);
      }
    }
    trie->look_ahead(scores);
  }
}

const std::vector<int32_t>& RtfCtcDecoder::followers(uint32_t word) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [at, is_new] = followers_.try_emplace(word);
  if (is_new)
    for (int32_t label = 0; label < options.num_labels; ++label)
      if (model->may_follow(word, lm_indices[label])) at->second.push_back(label);
  return at->second;
}
