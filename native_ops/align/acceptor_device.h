// Finite-state acceptors as the GPU kernels see them: the edges of each sequence, listed by target state, by source
// state and by class, so that each sum is computed by one group of threads in a fixed order.
#pragma once

#include <algorithm>
#include <vector>

#include "align.h"
#include "number.h"
#include "reach.h"
#include "staging.h"

namespace rtf {

// The edges of all sequences, sorted by some key.
struct ArcList {
  int64_t keys;
  const int32_t* starts;  // [batch, keys + 1]
  const int32_t* from;    // [batch, edges], as are the next two
  const int32_t* to;
  const int32_t* label;  // index of the class among the used classes
  const int32_t* edge;   // index in the original list
};

struct DeviceAcceptors {
  int64_t frames, batch, classes, edges, states, most_used;
  const float* values;  // [frames, batch, classes]
  const float* costs;   // [batch, edges]
  const int32_t *lengths, *num_states;
  const int32_t* used;            // [batch, most_used]: the classes that occur on edges
  const int32_t* num_used;        // [batch]
  const int32_t *before, *after;  // [batch, states]: the fewest edges from the start, and to the end

  // Whether a path may be in state s after t frames (reach.h). Where an edge of frame t may be on a path, its states
  // are live after t and after t + 1 frames.
  __device__ __forceinline__ bool is_live(int b, int s, int64_t t) const {
    return __ldg(before + b * states + s) <= t && __ldg(after + b * states + s) <= lengths[b] - t;
  }
};

inline int64_t most_used_classes(const RtfScores& scores, const RtfAcceptors& acceptors) {
  return std::min(acceptors.edges, scores.classes);
}

// Number of 32-bit integers in the staging memory of the acceptors, and of one list with that many keys.
inline int64_t staged_acceptors(const RtfScores& scores, const RtfAcceptors& acceptors) {
  return scores.batch * (3 + most_used_classes(scores, acceptors) + 2 * acceptors.states);
}

inline int64_t staged_list(int64_t batch, int64_t edges, int64_t keys) { return batch * (keys + 1 + 4 * edges); }

// Builds the edges and their lists on the host.
class AcceptorPlan {
 public:
  AcceptorPlan(const RtfScores& scores, const RtfAcceptors& acceptors)
      : scores_(scores),
        acceptors_(acceptors),
        most_used_(most_used_classes(scores, acceptors)),
        before_(scores.batch * acceptors.states),
        after_(before_.size()) {
    std::vector<int32_t> place(scores.classes, -1);
    used_.resize(scores.batch * most_used_);
    for (int64_t b = 0; b < scores.batch; ++b) {
      begin_.push_back(static_cast<int64_t>(arcs_.size()));
      int32_t* used = used_.data() + b * most_used_;
      int32_t count = 0;
      for (int64_t i = 0; i < acceptors.edges; ++i) {
        const int32_t* arc = acceptors.arcs + (b * acceptors.edges + i) * 3;
        if (arc[2] < 0) continue;
        if (place[arc[2]] < 0) {
          place[arc[2]] = count;
          used[count++] = arc[2];
        }
        arcs_.push_back({arc[0], arc[1], place[arc[2]], static_cast<int32_t>(i)});
      }
      for (int32_t u = 0; u < count; ++u) place[used[u]] = -1;
      num_used_.push_back(count);
      const Reach reach(acceptors, b);
      std::copy(reach.before.begin(), reach.before.end(), before_.begin() + b * acceptors.states);
      std::copy(reach.after.begin(), reach.after.end(), after_.begin() + b * acceptors.states);
    }
    begin_.push_back(static_cast<int64_t>(arcs_.size()));
  }

  struct Arc {
    int32_t from, to, label, edge;
  };

  DeviceAcceptors stage(Staging* staging) const {
    DeviceAcceptors to{scores_.frames,    scores_.batch, scores_.classes, acceptors_.edges,
                       acceptors_.states, most_used_,    scores_.values,  acceptors_.costs};
    to.lengths = staging->add(scores_.lengths, scores_.batch);
    to.num_states = staging->add(acceptors_.num_states, scores_.batch);
    to.used = staging->add(used_.data(), static_cast<int64_t>(used_.size()));
    to.num_used = staging->add(num_used_.data(), scores_.batch);
    to.before = staging->add(before_.data(), static_cast<int64_t>(before_.size()));
    to.after = staging->add(after_.data(), static_cast<int64_t>(after_.size()));
    return to;
  }

  // Sorts the edges by a key in 0 .. keys - 1; the sort is stable.
  ArcList stage_list(int32_t Arc::*key, int64_t keys, Staging* staging) const {
    const int64_t n = scores_.batch * acceptors_.edges;
    std::vector<int32_t> starts(scores_.batch * (keys + 1)), columns(4 * n);
    for (int64_t b = 0; b < scores_.batch; ++b) {
      int32_t* start = starts.data() + b * (keys + 1);
      for (int64_t i = begin_[b]; i < begin_[b + 1]; ++i) ++start[arcs_[i].*key + 1];
      for (int64_t k = 0; k < keys; ++k) start[k + 1] += start[k];
      std::vector<int32_t> next(start, start + keys);
      for (int64_t i = begin_[b]; i < begin_[b + 1]; ++i) {
        const Arc& arc = arcs_[i];
        const int64_t at = b * acceptors_.edges + next[arc.*key]++;
        columns[at] = arc.from;
        columns[n + at] = arc.to;
        columns[2 * n + at] = arc.label;
        columns[3 * n + at] = arc.edge;
      }
    }
    const int32_t* on_device = staging->add(starts.data(), static_cast<int64_t>(starts.size()));
    const int32_t* first = staging->add(columns.data(), 4 * n);
    return {keys, on_device, first, first + n, first + 2 * n, first + 3 * n};
  }

  // Lanes that share the edges of a key: a power of two, at most their mean number.
  int lanes(int64_t keys) const {
    int lanes = 1;
    while (lanes < kWarp && 2 * lanes * keys <= acceptors_.edges) lanes *= 2;
    return lanes;
  }

 private:
  const RtfScores& scores_;
  const RtfAcceptors& acceptors_;
  int64_t most_used_;
  std::vector<Arc> arcs_;
  std::vector<int64_t> begin_;  // first arc of each sequence, and the end
  std::vector<int32_t> used_, num_used_, before_, after_;
};

// Threads per block, with groups of lanes sharing the states.
inline int threads_for_acceptors(const DeviceAcceptors& all, int lanes) {
  return std::min(512, threads_for(std::max(all.states * lanes, all.most_used)));
}

// Calls step(step index, frame, scores of the used classes) for all frames, from the first or from the last, with a
// barrier after each. emitted [2, most_used]; convert(score) is the value stored, read one frame ahead.
template <typename Emitted, typename Convert, typename Step>
__device__ __forceinline__ void walk_acceptor(const DeviceAcceptors& all, int b, bool forward, Emitted* emitted,
                                              const Convert& convert, const Step& step) {
  const int frames = all.lengths[b], count = all.num_used[b], mine = threadIdx.x;
  const int32_t* used = all.used + b * all.most_used;
  const auto frame = [&](int i) { return forward ? i : frames - 1 - i; };
  const auto read = [&](int i, int u) {
    return __ldg(all.values + (frame(i) * all.batch + b) * all.classes + used[u]);
  };
  if (frames > 0)
    for (int u = mine; u < count; u += blockDim.x) emitted[u] = convert(read(0, u));
  __syncthreads();
  for (int i = 0; i < frames; ++i) {
    const bool more = i + 1 < frames;
    const float ahead = more && mine < count ? read(i + 1, mine) : 0.0f;
    step(i, frame(i), emitted + (i & 1) * all.most_used);
    Emitted* next = emitted + (~i & 1) * all.most_used;
    if (more && mine < count) next[mine] = convert(ahead);
    if (more)
      for (int u = mine + blockDim.x; u < count; u += blockDim.x) next[u] = convert(read(i + 1, u));
    __syncthreads();
  }
}

// Calls function(state, first, last) for the states that are live after t frames, with one group of lanes per state, in
// all lanes of the warps that have one; state is -1 in surplus groups.
template <typename Function>
__device__ __forceinline__ void for_groups(const DeviceAcceptors& all, int b, int64_t t, int lanes,
                                           const int32_t* starts, const Function& function) {
  const int groups = blockDim.x / lanes, group = threadIdx.x / lanes;
  for (int begin = 0; begin < all.num_states[b]; begin += groups) {
    const int s = begin + group;
    const bool is_live = s < all.num_states[b] && all.is_live(b, s, t);
    if (!__any_sync(kAllLanes, is_live)) continue;
    function(is_live ? s : -1, is_live ? starts[s] : 0, is_live ? starts[s + 1] : 0);
  }
}

}  // namespace rtf
