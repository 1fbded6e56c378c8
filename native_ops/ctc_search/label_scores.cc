#include "label_scores.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace rtf {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int32_t kNone = -1;
constexpr int32_t kBegun = 2;  // added to the last label, so that 0 is the state before the first one

bool equal(const NGram::State& a, const NGram::State& b) {
  return a.length == b.length && std::equal(a.words, a.words + a.length, b.words);
}

int32_t bits_of(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof(x));
  return bits;
}

float float_of(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

}  // namespace

LabelScores::LabelScores(const RtfCtcDecoder& decoder, const RtfLabelScores& options)
    : d_(decoder), options_(options) {}

void LabelScores::load(const int32_t* state) {
  readings_.clear();
  last_label_ = *state++ - kBegun;
  const int64_t nodes = d_.trie ? d_.trie->size() : 1;
  for (int32_t i = 0; i < options_.readings && state[0] > 0; ++i, state += reading_size()) {
    Reading reading;
    reading.trie = state[0] - 1;
    reading.score = float_of(state[1]);
    reading.lm.length = state[2];
    if (reading.trie >= nodes || reading.lm.length < 0 || reading.lm.length >= order())
      break;  // no state of these words
    for (int n = 0; n < reading.lm.length; ++n) {
      reading.lm.words[n] = static_cast<uint32_t>(state[3 + 2 * n]);
      reading.lm.backoffs[n] = float_of(state[4 + 2 * n]);
    }
    readings_.push_back(reading);
  }
}

void LabelScores::store(int32_t* state) const {
  std::fill(state, state + state_size(), 0);
  *state++ = last_label_ + kBegun;
  for (const Reading& reading : readings_) {
    state[0] = reading.trie + 1;
    state[1] = bits_of(reading.score);
    state[2] = reading.lm.length;
    for (int n = 0; n < reading.lm.length; ++n) {
      state[3 + 2 * n] = static_cast<int32_t>(reading.lm.words[n]);
      state[4 + 2 * n] = bits_of(reading.lm.backoffs[n]);
    }
    state += reading_size();
  }
}

// The score of a reading with what the model and the options give a label, or the word that it ends.
float LabelScores::with_token(const Reading& reading, int32_t label, int32_t word, NGram::State* state) const {
  *state = reading.lm;
  float score = reading.score + d_.own_score(label, word);
  const int32_t token = d_.options.lm_of_labels ? label : word;
  if (d_.model && token >= 0) score += d_.options.lm_scale * d_.model->score(reading.lm, d_.lm_indices[token], state);
  return score;
}

// Calls use with the readings that a reading becomes in a node of the trie.
template <typename Use>
void LabelScores::into_node(const Reading& reading, int32_t node, const Use& use) const {
  const Trie::Node& at = (*d_.trie)[node];
  Reading next;
  next.begin = reading.trie == Trie::kRoot ? position_ : reading.begin;
  if (at.children > 0) {
    next.trie = node;
    next.last_word = reading.last_word;
    next.score = with_token(reading, at.label, kNone, &next.lm);
    use(at.label, next);
  }
  for (int32_t w = 0; w < at.words; ++w) {
    const int32_t word = d_.trie->word(at.first_word + w);
    next.trie = Trie::kRoot;
    next.score = with_token(reading, at.label, word, &next.lm);
    next.last_word = found(reading, word);
    use(at.label, next);
  }
}

// The index of a word that a reading ends with the label at this position; -1 where words are not kept.
int32_t LabelScores::found(const Reading& reading, int32_t word) const {
  if (!traced_) return kNone;
  const int32_t begin = reading.trie == Trie::kRoot ? position_ : reading.begin;
  words_.push_back({word, begin, position_ + 1, reading.last_word});
  return static_cast<int32_t>(words_.size()) - 1;
}

// Calls use with the readings that a reading becomes after a label; kNone: after each label.
template <typename Use>
void LabelScores::after_label(const Reading& reading, int32_t label, const Use& use) const {
  const int32_t blank = d_.options.blank, separator = d_.options.separator;
  Reading next = reading;
  if (blank >= 0 && (label == kNone || label == blank)) use(blank, next);
  if (!d_.trie) {
    const int32_t first = label == kNone ? 0 : label, end = label == kNone ? d_.options.num_labels : label + 1;
    for (int32_t each = first; each < end; ++each) {
      if (each == blank || each == options_.end_label) continue;
      next.score = with_token(reading, each, kNone, &next.lm);
      use(each, next);
    }
    return;
  }
  if (separator >= 0 && reading.trie == Trie::kRoot && last_label_ != separator &&
      (label == kNone || label == separator)) {
    next.score = with_token(reading, separator, kNone, &next.lm);
    use(separator, next);
  }
  if (label == kNone) {
    const Trie::Node& at = (*d_.trie)[reading.trie];
    for (int32_t c = at.first_child; c < at.first_child + at.children; ++c) into_node(reading, c, use);
  } else {
    const int32_t child = d_.trie->child(reading.trie, label);
    if (child >= 0) into_node(reading, child, use);
  }
}

// The scores of all labels after a reading, without a lexicon. Few labels have n-grams with the one before.
void LabelScores::score_labels(const Reading& reading, float* scores) const {
  const float before = reading.score + d_.options.lm_scale * NGram::backoff(reading.lm);
  for (size_t label = 0; label < d_.alone.size(); ++label) scores[label] = before + d_.alone[label];
  NGram::State state;
  if (reading.lm.length > 0)
    for (int32_t label : d_.followers(reading.lm.words[0])) scores[label] = with_token(reading, label, kNone, &state);
  if (d_.options.blank >= 0) scores[d_.options.blank] = reading.score;
  if (options_.end_label >= 0) scores[options_.end_label] = kNever;
}

float LabelScores::score_of_end(const Reading& reading) const {
  if (!d_.model || !d_.model->has_end()) return reading.score;
  NGram::State state;
  return reading.score + d_.options.lm_scale * d_.model->score(reading.lm, d_.model->end(), &state);
}

// The score of a sequence that ends here; -inf within a word. The last word needs no separator: then it is set.
float LabelScores::at_end(const Reading& reading, int32_t* last_word) const {
  if (!d_.trie || reading.trie == Trie::kRoot) return score_of_end(reading);
  const int32_t separator = d_.options.separator;
  const int32_t child = separator < 0 ? Trie::kNone : d_.trie->child(reading.trie, separator);
  float best = kNever;
  for (int32_t w = 0; child >= 0 && w < (*d_.trie)[child].words; ++w) {
    const int32_t word = d_.trie->word((*d_.trie)[child].first_word + w);
    Reading next = reading;
    next.score = with_token(reading, kNone, word, &next.lm);
    const float score = score_of_end(next);
    if (score <= best) continue;
    best = score;
    if (last_word) *last_word = word;
  }
  return best;
}

// Replaces the readings by those with one label more.
void LabelScores::advance(int32_t label) {
  next_.clear();
  Reading anew;  // after a label that has -inf: the words begin anew
  if (!readings_.empty()) anew.last_word = readings_.front().last_word;
  if (label < 0 || label >= d_.options.num_labels) readings_.clear();
  for (const Reading& reading : readings_)
    after_label(reading, label, [&](int32_t, const Reading& next) {
      for (Reading& other : next_) {
        if (other.trie != next.trie || !equal(other.lm, next.lm)) continue;
        if (other.score < next.score) other = next;
        return;
      }
      next_.push_back(next);
    });
  if (next_.empty()) next_.push_back(anew);
  const auto better = [this](const Reading& a, const Reading& b) { return whole(a) > whole(b); };
  std::stable_sort(next_.begin(), next_.end(), better);
  if (next_.size() > static_cast<size_t>(options_.readings)) next_.resize(options_.readings);
  const float best = whole(next_.front());
  for (Reading& reading : next_) reading.score -= best;
  readings_.swap(next_);
  if (label != d_.options.blank) last_label_ = label;
}

void LabelScores::begin() {
  last_label_ = kNone;
  Reading first;
  if (d_.model) first.lm = d_.model->begin();
  readings_.assign(1, first);
}

std::vector<LabelScores::Word> LabelScores::words(const int32_t* labels, int64_t n, bool ended) {
  traced_ = true;
  words_.clear();
  begin();
  for (position_ = 0; position_ < n; ++position_) advance(labels[position_]);
  const Reading* best = nullptr;
  float score = kNever;
  int32_t last_word = kNone;
  for (const Reading& reading : readings_) {
    int32_t own = kNone;
    const float here = ended ? at_end(reading, &own) : whole(reading);
    if (here > score) best = &reading, score = here, last_word = own;
  }
  std::vector<Word> result;
  if (!best) best = &readings_.front();
  if (last_word != kNone) result.push_back({last_word, best->begin, static_cast<int32_t>(n), best->last_word});
  for (int32_t at = best->last_word; at != kNone; at = words_[at].before) result.push_back(words_[at]);
  std::reverse(result.begin(), result.end());
  traced_ = false;
  return result;
}

void LabelScores::step(int32_t label, bool last, const int32_t* before, int32_t* after, float* scores) {
  if (*before == 0) {
    begin();
  } else {
    load(before);
    if (label != options_.end_label) advance(label);
  }
  store(after);
  std::fill(scores, scores + d_.options.num_labels, kNever);
  for (const Reading& reading : readings_) {
    if (!d_.alone.empty() && !last)
      score_labels(reading, scores);
    else
      after_label(reading, kNone, [&](int32_t next_label, const Reading& next) {
        scores[next_label] = std::max(scores[next_label], last ? at_end(next) : whole(next));
      });
    float* const end = options_.end_label < 0 ? nullptr : scores + options_.end_label;
    if (end) *end = std::max(*end, at_end(reading));
  }
}

}  // namespace rtf
