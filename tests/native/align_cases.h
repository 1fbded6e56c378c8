// Random inputs of the alignments, for the drivers of the sanitizers: arrays of exactly the size that the kernels are
// told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "align/align.h"

typedef std::vector<float> Floats;
typedef std::vector<int32_t> Ints;

class Draw {
 public:
  explicit Draw(uint32_t seed) : state_(seed) {}

  int number(int64_t limit) {
    state_ = state_ * 1664525u + 1013904223u;
    return limit > 0 ? static_cast<int>((state_ >> 8) % limit) : 0;
  }

  Ints ints(int64_t n, int64_t limit) {
    Ints values(n);
    for (int32_t& value : values) value = number(limit);
    return values;
  }

  Floats floats(int64_t n) {
    Floats values(n);
    for (float& value : values) value = number(1000) / 200.0f - 2.5f;
    return values;
  }

 private:
  uint32_t state_;
};

struct AlignCase {
  explicit AlignCase(int seed) : AlignCase(Draw(seed)) {}

  explicit AlignCase(Draw draw)
      : frames(draw.number(20)), batch(draw.number(7)), classes(1 + draw.number(40)), labels(draw.number(12)) {
    values = draw.floats(frames * batch * classes);
    joint = draw.floats(batch * frames * (labels + 1) * classes);
    lengths = draw.ints(batch, frames + 1);
    symbols = draw.ints(batch * labels, classes);
    counts = draw.ints(batch, labels + 1);
    const int64_t edges = 2 * labels;
    costs = draw.floats(batch * edges);
    states = Ints(batch, 4);
    arcs = draw.ints(batch * edges * 3, 4);
    for (std::size_t i = 2; i < arcs.size(); i += 3) arcs[i] = draw.number(classes + 1) - 1;
    loop = std::vector<uint8_t>(batch * labels, 1);
    skip = std::vector<uint8_t>(batch * labels);
    for (uint8_t& flag : skip) flag = draw.number(2);
    scores = {frames, batch, classes, values.data(), lengths.data()};
    ctc = {labels, symbols.data(), counts.data(), 0, draw.number(2), draw.number(2), draw.number(2)};
    chains = {labels, symbols.data(), counts.data(), loop.data(), skip.data(), draw.number(2)};
    acceptors = {edges, 4, arcs.data(), costs.data(), states.data()};
    transducer = {batch,          frames,        labels, classes,        joint.data(),  lengths.data(),
                  symbols.data(), counts.data(), 0,      draw.number(2), draw.number(2)};
    totals = Floats(batch);
    by_class = Floats(values.size());
    by_cell = Floats(joint.size());
    path = Ints(frames * batch);
  }

  int64_t frames, batch, classes, labels;
  Floats values, joint, costs;
  Ints lengths, symbols, counts, states, arcs;
  std::vector<uint8_t> loop, skip;
  RtfScores scores;
  RtfCtc ctc;
  RtfChains chains;
  RtfAcceptors acceptors;
  RtfTransducer transducer;
  // results
  Floats totals, by_class, by_cell;
  Ints path;
};
