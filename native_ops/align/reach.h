// In which frames the paths through a finite-state acceptor can pass its states, on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "align.h"

namespace rtf {

// Each edge takes a frame, so that a state can be on a path after t frames only if the start is at most t edges before
// it, and the end at most as many after it as frames remain.
//
// A walk over the frames need not clear the other states (as in live.h): those behind it lead to no state that a path
// passes later, those ahead still have the value from before the first frame.
struct Reach {
  static constexpr int32_t kNever = INT32_MAX / 2;

  std::vector<int32_t> before, after;  // [states]: the fewest edges from the start, and to the end

  // Of sequence b.
  Reach(const RtfAcceptors& acceptors, int64_t b) {
    const int64_t n = acceptors.num_states[b];
    const int32_t* arcs = acceptors.arcs + b * acceptors.edges * 3;
    before = fewest_edges(arcs, acceptors.edges, n, 0, 0);
    after = fewest_edges(arcs, acceptors.edges, n, 1, static_cast<int32_t>(n - 1));
  }

 private:
  // side: which end of an edge is nearer to the state from which to count
  static std::vector<int32_t> fewest_edges(const int32_t* arcs, int64_t edges, int64_t states, int side,
                                           int32_t begin) {
    std::vector<int32_t> starts(states + 1), others(edges);
    for (int64_t i = 0; i < edges; ++i)
      if (arcs[3 * i + 2] >= 0) ++starts[arcs[3 * i + side] + 1];
    for (int64_t s = 0; s < states; ++s) starts[s + 1] += starts[s];
    std::vector<int32_t> next(starts.begin(), starts.end() - 1);
    for (int64_t i = 0; i < edges; ++i)
      if (arcs[3 * i + 2] >= 0) others[next[arcs[3 * i + side]]++] = arcs[3 * i + 1 - side];
    std::vector<int32_t> fewest(states, kNever), queue{begin};
    fewest[begin] = 0;
    for (size_t done = 0; done < queue.size(); ++done)
      for (int32_t i = starts[queue[done]]; i < starts[queue[done] + 1]; ++i)
        if (fewest[others[i]] == kNever) {
          fewest[others[i]] = fewest[queue[done]] + 1;
          queue.push_back(others[i]);
        }
    return fewest;
  }
};

}  // namespace rtf
