#include "search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr int32_t kNone = -1;
constexpr size_t kFewNodes = 1024;

double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kNever ? a : a + std::log1p(std::exp(b - a));
}

uint64_t hash_after(uint64_t hash, int32_t label, int32_t word) {
  hash ^= (static_cast<uint64_t>(static_cast<uint32_t>(label + 1)) << 32) + static_cast<uint32_t>(word + 1);
  hash = (hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15ull;
  return (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9ull;
}

}  // namespace

RtfCtcSearch::RtfCtcSearch(const RtfCtcDecoder& decoder)
    : d_(decoder), most_nodes_(kFewNodes), allowed_(decoder.options.num_labels) {
  Node root{};
  root.hash = 1;
  root.parent = root.label = root.word = root.last_word = kNone;
  root.trie = rtf::Trie::kRoot;
  if (d_.model) root.lm_state = d_.model->begin();
  nodes_.push_back(root);
  active_.push_back({0, 0.0, kNever, rest(root)});
  size_t size = 16;
  while (size < 4 * static_cast<size_t>(d_.options.beam_size)) size *= 2;
  table_.resize(size);
  index_active();
}

// All parts of the score but that of the frames, and what the words that may end next add at best.
double RtfCtcSearch::rest(const Node& node) const {
  double score = d_.options.lm_scale * node.lm + node.own;
  if (d_.phrases) score += node.phrase_score + d_.phrases->share(node.phrase, node.label);
  return d_.trie ? score + d_.trie->best(node.trie) : score;
}

void RtfCtcSearch::frame(const float* log_probs) {
  const int32_t blank = d_.options.blank;
  choose_labels(log_probs, d_.options.labels_per_frame);
  double best = kNever;
  next_.clear();
  candidates_.clear();
  // the hypotheses stay what they are, or become what another one already is
  for (const Active& a : active_) {
    const Node& node = nodes_[a.node];
    Active stays{a.node, kNever, kNever, kNever};
    if (blank >= 0) stays.blank = log_add(a.blank, a.label) + log_probs[blank];
    if (node.label >= 0) {
      stays.label = a.label + d_.options.loop_score + log_probs[node.label];
      const int32_t parent = find_active(node.parent_hash);
      if (parent >= 0) {
        const Active& p = active_[parent];
        const bool same = nodes_[p.node].label == node.label && d_.blank_separates();
        const double from = same ? p.blank : log_add(p.blank, p.label);
        stays.label = log_add(stays.label, from + d_.options.forward_score + log_probs[node.label]);
      }
    }
    stays.total = log_add(stays.blank, stays.label) + rest(node);
    best = std::max(best, stays.total);
    next_.push_back(stays);
  }
  const auto extend_all = [&] {
    for (size_t i = 0; i < active_.size(); ++i) extend(static_cast<int32_t>(i), log_probs, &best);
  };
  extend_all();
  if (best == kNever) {  // without a blank, none of the best labels may come first
    choose_labels(log_probs, 0);
    extend_all();
  }
  keep_best(best);
  if (nodes_.size() >= most_nodes_) free_nodes();
}

// Chooses the best labels of a frame; most = 0: all.
void RtfCtcSearch::choose_labels(const float* log_probs, size_t most) {
  for (int32_t label : labels_) allowed_[label] = 0;
  labels_.clear();
  for (int32_t label = 0; label < d_.options.num_labels; ++label)
    if (label != d_.options.blank && log_probs[label] > -std::numeric_limits<float>::infinity())
      labels_.push_back(label);
  const auto better = [&](int32_t a, int32_t b) {
    return log_probs[a] != log_probs[b] ? log_probs[a] > log_probs[b] : a < b;
  };
  if (most > 0 && labels_.size() > most) {
    std::nth_element(labels_.begin(), labels_.begin() + most, labels_.end(), better);
    labels_.resize(most);
  }
  std::sort(labels_.begin(), labels_.end(), better);
  for (int32_t label : labels_) allowed_[label] = 1;
}

void RtfCtcSearch::extend(int32_t from, const float* log_probs, double* best) {
  const Active& a = active_[from];
  const Node& node = nodes_[a.node];
  const double sum = log_add(a.blank, a.label), others = a.total - sum;
  const auto sum_with = [&](int32_t label) {
    const double from = label == node.label && d_.blank_separates() ? a.blank : sum;
    return from + d_.options.forward_score + log_probs[label];
  };
  const bool between = !d_.trie || node.trie == rtf::Trie::kRoot;
  const int32_t separator = d_.options.separator;
  if (d_.trie && between && separator >= 0 && allowed_[separator] && node.label != separator)
    add(from, separator, kNone, rtf::Trie::kRoot, sum_with(separator), *best - d_.options.beam_threshold, best);
  const auto extend_by = [&](int32_t label, int32_t child) {
    const double with = sum_with(label), limit = *best - d_.options.beam_threshold;
    if (!d_.trie && label == node.label && !d_.blank_separates()) return;  // the same as the label lasting longer
    if (!d_.trie) return add(from, label, kNone, rtf::Trie::kRoot, with, limit, best);
    if (with + others - d_.trie->best(node.trie) + d_.trie->best(child) < limit) return;
    const rtf::Trie::Node& at = (*d_.trie)[child];
    if (at.children > 0) add(from, label, kNone, child, with, limit, best);
    for (int32_t w = 0; w < at.words; ++w)
      add(from, label, d_.trie->word(at.first_word + w), rtf::Trie::kRoot, with, limit, best);
  };
  const rtf::Trie::Node* const at = d_.trie ? &(*d_.trie)[node.trie] : nullptr;
  if (at && static_cast<size_t>(at->children) < labels_.size()) {
    for (int32_t c = at->first_child; c < at->first_child + at->children; ++c) {
      const int32_t label = (*d_.trie)[c].label;
      if (allowed_[label]) extend_by(label, c);
    }
    return;
  }
  for (int32_t label : labels_) {
    const double most = sum + d_.options.forward_score + log_probs[label] + others;
    if (d_.trie && most < *best - d_.options.beam_threshold) return;  // so are all others
    const int32_t child = d_.trie ? d_.trie->child(node.trie, label) : kNone;
    if (!d_.trie || child >= 0) extend_by(label, child);
  }
}

void RtfCtcSearch::add(int32_t from, int32_t label, int32_t word, int32_t trie, double sum, double limit,
                       double* best) {
  if (sum == kNever) return;
  const Node& node = nodes_[active_[from].node];
  if (find_active(hash_after(node.hash, label, word)) >= 0) return;  // its sum has this already
  rtf::NGram::State state;
  double others = d_.options.lm_scale * (node.lm + lm_score(node, label, word, &state));
  others += node.own + d_.own_score(label, word);
  if (d_.phrases) {
    const int32_t phrase = phrase_after(node, label, word);
    others += node.phrase_score + phrase_found(node, phrase, label, word) + d_.phrases->share(phrase, label);
  }
  if (d_.trie) others += d_.trie->best(trie);
  const double total = sum + others;
  if (total < limit) return;
  *best = std::max(*best, total);
  candidates_.push_back({from, label, word, trie, sum, total});
}

// The log probability of what the model scores of a step, and the state after it.
double RtfCtcSearch::lm_score(const Node& node, int32_t label, int32_t word, rtf::NGram::State* state) const {
  const int32_t token = d_.options.lm_of_labels ? label : word;
  if (!d_.model || token < 0) {
    *state = node.lm_state;
    return 0;
  }
  return d_.model->score(node.lm_state, d_.lm_indices[token], state);
}

int32_t RtfCtcSearch::phrase_after(const Node& node, int32_t label, int32_t word) const {
  if (!d_.trie) return d_.phrases->step(node.phrase, node.label, label);
  return word < 0 ? node.phrase : d_.phrases->step(node.phrase, node.last_word, word);
}

// The weights of the phrases that a step to a phrase state completes.
float RtfCtcSearch::phrase_found(const Node& node, int32_t phrase, int32_t label, int32_t word) const {
  if (!d_.trie) return d_.phrases->found(node.phrase, node.label, phrase, label);
  return word < 0 ? 0 : d_.phrases->found(node.phrase, node.last_word, phrase, word);
}

int32_t RtfCtcSearch::append(const Candidate& candidate) {
  const int32_t parent = active_[candidate.from].node;
  Node node = nodes_[parent];
  const Node& before = nodes_[parent];
  node.lm += lm_score(before, candidate.label, candidate.word, &node.lm_state);
  if (d_.phrases) {
    node.phrase = phrase_after(before, candidate.label, candidate.word);
    node.phrase_score += phrase_found(before, node.phrase, candidate.label, candidate.word);
  }
  node.parent_hash = before.hash;
  node.hash = hash_after(before.hash, candidate.label, candidate.word);
  node.parent = parent;
  node.label = candidate.label;
  node.word = candidate.word;
  if (candidate.word >= 0) node.last_word = candidate.word;
  node.own += d_.own_score(candidate.label, candidate.word);
  node.trie = candidate.trie;
  nodes_.push_back(node);
  return static_cast<int32_t>(nodes_.size()) - 1;
}

void RtfCtcSearch::keep_best(double best) {
  const double limit = best - d_.options.beam_threshold;
  std::vector<std::pair<double, int32_t>> order;  // candidates are those from next_.size() on
  for (size_t i = 0; i < next_.size(); ++i)
    if (next_[i].total >= limit && next_[i].total > kNever) order.emplace_back(next_[i].total, static_cast<int32_t>(i));
  for (size_t i = 0; i < candidates_.size(); ++i)
    if (candidates_[i].total >= limit) order.emplace_back(candidates_[i].total, static_cast<int32_t>(next_.size() + i));
  if (order.empty()) return;  // a frame in which no label has any probability
  const auto better = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  const size_t most = d_.options.beam_size;
  if (order.size() > most) {
    std::nth_element(order.begin(), order.begin() + most, order.end(), better);
    order.resize(most);
  }
  std::sort(order.begin(), order.end(), better);
  std::vector<Active> kept;
  kept.reserve(order.size());
  for (const auto& [total, index] : order) {
    if (index < static_cast<int32_t>(next_.size())) {
      kept.push_back(next_[index]);
    } else {
      const Candidate& candidate = candidates_[index - next_.size()];
      kept.push_back({append(candidate), kNever, candidate.sum, total});
    }
  }
  active_.swap(kept);
  index_active();
}

void RtfCtcSearch::index_active() {
  std::fill(table_.begin(), table_.end(), kNone);
  const size_t mask = table_.size() - 1;
  for (size_t i = 0; i < active_.size(); ++i) {
    size_t at = nodes_[active_[i].node].hash & mask;
    while (table_[at] != kNone) at = (at + 1) & mask;
    table_[at] = static_cast<int32_t>(i);
  }
}

int32_t RtfCtcSearch::find_active(uint64_t hash) const {
  const size_t mask = table_.size() - 1;
  for (size_t at = hash & mask; table_[at] != kNone; at = (at + 1) & mask)
    if (nodes_[active_[table_[at]].node].hash == hash) return table_[at];
  return kNone;
}

// Frees the nodes that no active hypothesis descends from, and those that all do: of these, labels and words remain.
// The next time is when there are twice as many nodes as now, so that each node costs a constant time on average.
void RtfCtcSearch::free_nodes() {
  const size_t count = nodes_.size();
  std::vector<uint8_t> is_active(count);
  std::vector<int32_t> children(count), last_child(count, kNone);  // of nodes that are needed
  for (const Active& a : active_) is_active[a.node] = 1;
  for (size_t i = count - 1; i > 0; --i) {
    if (!is_active[i] && children[i] == 0) continue;
    children[nodes_[i].parent] += 1;
    last_child[nodes_[i].parent] = static_cast<int32_t>(i);
  }
  size_t first = 0;
  while (!is_active[first] && children[first] == 1) {
    first = last_child[first];
    const Node& node = nodes_[first];
    settled_.push_back({node.label, node.word, node.trie == rtf::Trie::kRoot});
  }
  std::vector<int32_t> moved(count, kNone);
  size_t kept = 0;
  for (size_t i = first; i < count; ++i) {
    if (!is_active[i] && children[i] == 0) continue;
    moved[i] = static_cast<int32_t>(kept);
    const int32_t parent = i == first ? kNone : moved[nodes_[i].parent];
    nodes_[kept] = nodes_[i];
    nodes_[kept++].parent = parent;
  }
  nodes_.resize(kept);
  for (Active& a : active_) a.node = moved[a.node];
  most_nodes_ = std::max(kFewNodes, 2 * kept);
}

// A hypothesis as the result, with a word that ends without its separator.
RtfCtcSearch::Ending RtfCtcSearch::ending(size_t active, int32_t word, bool ended) const {
  const Node& node = nodes_[active_[active].node];
  Ending e{0,       active, word, word >= 0 || !d_.trie || node.trie == rtf::Trie::kRoot, node.lm, node.phrase_score,
           node.own};
  rtf::NGram::State state = node.lm_state;
  if (word >= 0) {
    e.lm += lm_score(node, kNone, word, &state);
    e.own += d_.own_score(kNone, word);
    if (d_.phrases) e.phrase_score += phrase_found(node, phrase_after(node, kNone, word), kNone, word);
  } else if (d_.phrases && !d_.trie && ended) {
    const int32_t separator = d_.options.separator;
    if (separator >= 0 && node.label != separator)
      e.phrase_score += phrase_found(node, phrase_after(node, separator, kNone), separator, kNone);
    else
      e.phrase_score += d_.phrases->found_by_end(node.phrase, node.label);
  }
  if (ended && d_.model && d_.model->has_end()) e.lm += d_.model->score(state, d_.model->end(), &state);
  e.total = log_add(active_[active].blank, active_[active].label) + d_.options.lm_scale * e.lm + e.own + e.phrase_score;
  return e;
}

void RtfCtcSearch::add_endings(size_t active, std::vector<Ending>* endings) const {
  const Node& node = nodes_[active_[active].node];
  const int32_t separator = d_.options.separator;
  if (d_.trie && node.trie != rtf::Trie::kRoot && separator >= 0) {
    const int32_t child = d_.trie->child(node.trie, separator);
    const int32_t words = child < 0 ? 0 : (*d_.trie)[child].words;
    for (int32_t w = 0; w < words; ++w)
      endings->push_back(ending(active, d_.trie->word((*d_.trie)[child].first_word + w), true));
    if (words > 0) return;
  }
  endings->push_back(ending(active, kNone, true));
}

// The nodes up to one behind the labels that all hypotheses have in common, the first label first.
std::vector<int32_t> RtfCtcSearch::path_to(int32_t node) const {
  std::vector<int32_t> path;
  for (; nodes_[node].parent >= 0; node = nodes_[node].parent) path.push_back(node);
  std::reverse(path.begin(), path.end());
  return path;
}

// The words of a hypothesis behind those that all have in common.
std::vector<int32_t> RtfCtcSearch::words_of(const Ending& ending) const {
  std::vector<int32_t> words;
  for (int32_t node : path_to(active_[ending.active].node))
    if (nodes_[node].word >= 0) words.push_back(nodes_[node].word);
  if (ending.word >= 0) words.push_back(ending.word);
  return words;
}

int64_t RtfCtcSearch::results(bool ended, int64_t n, RtfHypothesis* results) {
  std::vector<Ending> endings;
  for (size_t i = 0; i < active_.size(); ++i) {
    if (ended) {
      add_endings(i, &endings);
    } else {
      endings.push_back(ending(i, kNone, false));
      endings.back().whole = true;
      endings.back().total = active_[i].total;
    }
  }
  std::stable_sort(endings.begin(), endings.end(),
                   [](const Ending& a, const Ending& b) { return a.whole != b.whole ? a.whole : a.total > b.total; });
  std::set<std::vector<int32_t>> listed;  // words with and without a separator after them are one result
  out_.assign(4 * std::min<size_t>(endings.size(), n), {});
  int64_t count = 0;
  for (const Ending& e : endings) {
    if (count == n || (!e.whole && endings.front().whole)) break;
    if (d_.trie && !listed.insert(words_of(e)).second) continue;
    auto *labels = &out_[4 * count], *words = labels + 1, *begins = labels + 2, *ends = labels + 3;
    int32_t begin = 0;
    const auto add_label = [&](int32_t label, int32_t word, bool ends_word) {
      labels->push_back(label);
      const int32_t end = static_cast<int32_t>(labels->size());
      if (word >= 0) {
        words->push_back(word);
        begins->push_back(begin);
        ends->push_back(end);
      }
      if (ends_word) begin = end;  // or it is a label between words
    };
    for (const Settled& s : settled_) add_label(s.label, s.word, s.ends_word);
    for (int32_t at : path_to(active_[e.active].node))
      add_label(nodes_[at].label, nodes_[at].word, nodes_[at].trie == rtf::Trie::kRoot);
    if (e.word >= 0) {
      words->push_back(e.word);
      begins->push_back(begin);
      ends->push_back(static_cast<int32_t>(labels->size()));
    }
    RtfHypothesis& r = results[count++];
    r.labels = labels->data();
    r.num_labels = static_cast<int64_t>(labels->size());
    r.words = words->data();
    r.word_begins = begins->data();
    r.word_ends = ends->data();
    r.num_words = static_cast<int64_t>(words->size());
    r.acoustic = log_add(active_[e.active].blank, active_[e.active].label);
    r.lm = d_.options.lm_scale * e.lm;
    r.word = e.own;
    r.phrase = e.phrase_score;
    r.score = r.acoustic + r.lm + r.word + r.phrase;
  }
  return count;
}
