#include "beam_search.h"

#include <algorithm>
#include <cmath>

#include "rows.h"

namespace {

// A hypothesis while the search runs.
struct Entry {
  std::vector<int> labels;
  double score = 0;
  bool ended = false;
};

// The continuation of an entry by a label.
struct Candidate {
  double score;
  int from, label;
};

// Returns the best continuations, best first. An entry that has ended continues by itself alone.
std::vector<Candidate> best_candidates(const std::vector<Entry>& entries, const std::vector<int>& row_of,
                                       const Tensor& scores, const SearchOptions& options, int step) {
  const auto matrix = scores.matrix<float>();
  std::vector<Candidate> found;
  for (size_t from = 0; from < entries.size(); ++from) {
    const Entry& entry = entries[from];
    if (entry.ended) {
      // Scores of all lengths compete: that of an ended one is scaled as if it had as many labels as the others.
      found.push_back(
          {entry.score * std::pow((step + 1.0) / step, options.length_exponent), int(from), options.end_label});
      continue;
    }
    for (int label = 0; label < matrix.dimension(1); ++label) {
      found.push_back({entry.score + matrix(row_of[from], label), int(from), label});
    }
  }
  const size_t kept = std::min<size_t>(options.beam_size, found.size());
  std::partial_sort(found.begin(), found.begin() + kept, found.end(),
                    [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  found.resize(kept);
  return found;
}

std::string only(const Graph& graph, const std::string& collection) {
  const std::vector<std::string> names = graph.collection(collection);
  if (names.size() != 1) {
    throw Error("the graph has " + std::to_string(names.size()) + " entries in the collection " + collection +
                ", but this search needs exactly one label and one score a step");
  }
  return names[0];
}

}  // namespace

std::vector<Hypothesis> beam_search(const Graph& graph, const EncoderInput& input, const Tensor& features,
                                    const SearchOptions& options) {
  const std::string label_var = only(graph, "decoder_input_vars"), score_var = only(graph, "decoder_output_vars");
  const std::vector<std::string> state_vars = graph.collection("_RETURNN_state_vars");
  const std::vector<std::string> updates = graph.collection("update_ops"), decodes = graph.collection("decode_ops");

  graph.run({{input.features, features}, {input.sizes, labels_of({int(features.dim_size(1))})}}, {},
            graph.collection("encode_ops"));

  std::vector<Entry> entries(1);
  std::vector<int> last = {options.start_label};  // of each hypothesis that goes on
  for (int step = 0; !last.empty() && (options.max_steps == 0 || step < options.max_steps); ++step) {
    graph.assign({label_var}, {labels_of(last)});
    if (!updates.empty()) graph.run({}, {}, updates);
    if (!graph.read({"IO/cond"})[0].scalar<bool>()()) break;  // the network has reached its max_seq_len
    graph.run({}, {}, decodes);
    const Tensor scores = graph.read({score_var})[0];

    std::vector<int> row_of(entries.size(), -1);  // ended entries are not computed
    for (size_t i = 0, row = 0; i < entries.size(); ++i) {
      if (!entries[i].ended) row_of[i] = int(row++);
    }
    std::vector<Entry> next;
    std::vector<int> rows;
    last.clear();
    for (const Candidate& best : best_candidates(entries, row_of, scores, options, step)) {
      Entry entry = entries[best.from];
      const bool went_on = !entry.ended;
      entry.score = best.score;
      if (went_on) {
        entry.ended = best.label == options.end_label;
        if (!entry.ended) {
          entry.labels.push_back(best.label);
          rows.push_back(row_of[best.from]);
          last.push_back(best.label);
        }
      }
      next.push_back(std::move(entry));
    }
    entries = std::move(next);

    std::vector<Tensor> states = graph.read(state_vars);
    for (Tensor& state : states) state = take_rows(state, rows);
    if (!rows.empty()) graph.assign(state_vars, states);
  }

  size_t longest = 0;  // the end counts too, although the limit may have cut it off
  for (const Entry& entry : entries) longest = std::max(longest, entry.labels.size());
  std::vector<Hypothesis> result;
  for (const Entry& entry : entries) {
    result.push_back({entry.labels, entry.score / std::pow(longest + 1.0, options.length_exponent)});
  }
  return result;
}
