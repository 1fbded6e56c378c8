// Beam search over a graph that computes one step for all hypotheses, as a decoder does it: all states are read from
// variables of the graph and written back for the hypotheses that survive.
#pragma once

#include <string>
#include <vector>

#include "graph.h"

struct SearchOptions {
  int beam_size = 12;
  int start_label = 0;
  int end_label = 0;
  int max_steps = 0;             // besides the limit of the network, its max_seq_len; 0: no other
  double length_exponent = 1.0;  // scores are divided by (labels of the longest, end included) ** this; 0: not at all
};

struct Hypothesis {
  std::vector<int> labels;  // without the end label
  double score = 0;         // log probability, divided as the options say
};

// The names in the graph of what is fed to the encoder.
struct EncoderInput {
  std::string features, sizes;
};

// Returns the hypotheses of one sequence, best first. `features` is [1, time, dim]. Throws Error.
std::vector<Hypothesis> beam_search(const Graph& graph, const EncoderInput& input, const Tensor& features,
                                    const SearchOptions& options);
