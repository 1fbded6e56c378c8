/* Beam search over a graph that computes one step for all hypotheses. */
#ifndef BEAM_SEARCH_H
#define BEAM_SEARCH_H

#include "meta_graph.h"
#include "sequence.h"

typedef struct {
  const char *input, *sizes; /* names of what is fed to the encoder */
  int beam_size, start_label, end_label;
  int max_steps;          /* besides the limit of the network, its max_seq_len; 0: no other */
  double length_exponent; /* scores are divided by (labels of the longest hypothesis, end included) to this power */
} SearchOptions;

/* Prints a line "tag score labels" for a sequence. */
void search(const MetaGraph* graph, const Sequence* seq, const SearchOptions* options);

#endif
