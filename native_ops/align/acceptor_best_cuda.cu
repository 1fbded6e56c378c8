// Best paths through finite-state acceptors on the GPU: one block per sequence, one group of lanes per state.
#include "acceptor_device.h"
#include "align_cuda.h"

namespace rtf {
namespace {

// Frames of the last-edge table that are loaded into shared memory at once during the traceback.
constexpr int kPart = 8192;

struct BestWork {
  int32_t* last_edges;  // [batch, frames, states]: list index of the last edge of the best path to a live state
  float* rows;          // [batch, 2, states + most used classes], used if shared memory is too small
  int32_t* staged;

  BestWork(const RtfScores& scores, const RtfAcceptors& acceptors, Workspace* from) {
    const int64_t most_used = most_used_classes(scores, acceptors);
    last_edges = from->take<int32_t>(scores.batch * scores.frames * acceptors.states);
    rows = from->take<float>(scores.batch * 2 * (acceptors.states + most_used));
    staged = from->take<int32_t>(staged_acceptors(scores, acceptors) +
                                 staged_list(scores.batch, acceptors.edges, acceptors.states));
  }
};

// A path into a state. In the list sorted by target state, the edges into a state keep the order in which they were
// given.
struct Way {
  float score;
  int32_t edge;  // -1: none
};

// NaN propagates. Of equal scores the earlier edge wins, independent of the order of comparisons.
__device__ __forceinline__ bool is_better(Way way, Way other) {
  if (way.edge < 0 || other.edge < 0) return other.edge < 0;
  const bool is_nan = way.score != way.score, other_is_nan = other.score != other.score;
  if (is_nan || other_is_nan) return is_nan && (!other_is_nan || way.edge < other.edge);
  return way.score > other.score || (way.score == other.score && way.edge < other.edge);
}

__device__ __forceinline__ Way best_of_group(Way way, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    const Way other = {__shfl_down_sync(kAllLanes, way.score, offset, lanes),
                       __shfl_down_sync(kAllLanes, way.edge, offset, lanes)};
    if (is_better(other, way)) way = other;
  }
  return way;
}

// Fills the table of last edges; returns the scores of the states after the last frame.
__device__ __forceinline__ const float* find_ways(const DeviceAcceptors& all, const ArcList& list, int b, int lanes,
                                                  float* rows, float* scores, int32_t* last_edges) {
  const int n = all.num_states[b], lane = threadIdx.x % lanes;
  const int64_t first = b * all.edges;
  for (int s = threadIdx.x; s < n; s += blockDim.x) {
    rows[s] = s ? -INFINITY : 0.0f;
    rows[all.states + s] = -INFINITY;
  }
  walk_acceptor(
      all, b, true, scores, [](float x) { return x; },
      [&](int i, int t, const float* x) {
        const float* now = rows + (i & 1) * all.states;
        float* next = rows + (~i & 1) * all.states;
        for_groups(all, b, t + 1, lanes, list.starts + b * (list.keys + 1), [&](int s, int from, int end) {
          Way best = {-INFINITY, -1};
          for (int j = from + lane; j < end; j += lanes) {
            const float before = now[__ldg(list.from + first + j)];
            if (before == -INFINITY) continue;
            const float cost = __ldg(all.costs + first + __ldg(list.edge + first + j));
            const Way way = {before + (x[__ldg(list.label + first + j)] - cost), j};
            if (is_better(way, best)) best = way;
          }
          best = best_of_group(best, lanes);
          if (s < 0 || lane != 0) return;
          next[s] = best.score;
          last_edges[t * all.states + s] = best.edge;
        });
      });
  return rows + (all.lengths[b] & 1) * all.states;
}

// Traceback from the last state. All threads load frames of the table into shared memory if a frame fits; one follows
// them.
__device__ void trace(const DeviceAcceptors& all, const ArcList& list, int b, const int32_t* last_edges, int32_t* part,
                      int32_t* path) {
  const int64_t first = b * all.edges;
  const int rows = static_cast<int>(kPart / all.states);
  int state = all.num_states[b] - 1;
  for (int end = all.lengths[b]; end > 0; end -= max(rows, 1)) {
    const int begin = max(end - max(rows, 1), 0);
    const int32_t* table = last_edges + begin * all.states;
    if (rows > 0) {
      for (int64_t i = threadIdx.x; i < (end - begin) * all.states; i += blockDim.x) part[i] = table[i];
      table = part;
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (int t = end - 1; t >= begin; --t) {
        const int32_t edge = table[(t - begin) * all.states + state];
        path[t * all.batch + b] = all.used[b * all.most_used + list.label[first + edge]];
        state = list.from[first + edge];
      }
    __syncthreads();
  }
}

template <bool kShared>
__global__ void __launch_bounds__(512, 1)
    best_paths(DeviceAcceptors all, ArcList list, BestWork work, int lanes, int32_t* path, float* total) {
  const int b = blockIdx.x;
  int32_t* part = dynamic_shared<int32_t>();
  float* rows = kShared ? reinterpret_cast<float*>(part + kPart) : work.rows + b * 2 * (all.states + all.most_used);
  int32_t* last_edges = work.last_edges + b * all.frames * all.states;
  for (int64_t t = threadIdx.x; t < all.frames; t += blockDim.x) path[t * all.batch + b] = 0;
  const float* last = find_ways(all, list, b, lanes, rows, rows + 2 * all.states, last_edges);
  const float score = last[all.num_states[b] - 1];
  if (threadIdx.x == 0) total[b] = score;
  if (fabsf(score) < INFINITY) trace(all, list, b, last_edges, part, path);
}

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_acceptor_best_cuda_workspace(const RtfScores* scores, const RtfAcceptors* acceptors) {
  rtf::Workspace workspace(nullptr);
  rtf::BestWork(*scores, *acceptors, &workspace);
  return workspace.size();
}

const char* rtf_acceptor_best_cuda_f32(const RtfScores* scores, const RtfAcceptors* acceptors, int32_t* path,
                                       float* total, void* workspace, void* stream) {
  if (scores->batch == 0) return nullptr;
  rtf::Workspace memory(workspace);
  const rtf::BestWork work(*scores, *acceptors, &memory);
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  const rtf::AcceptorPlan plan(*scores, *acceptors);
  rtf::Staging staging(work.staged);
  const rtf::DeviceAcceptors all = plan.stage(&staging);
  const rtf::ArcList list = plan.stage_list(&rtf::AcceptorPlan::Arc::to, all.states, &staging);
  rtf::DeviceFacts facts;
  return rtf::first_error(
      [&] { return rtf::device_facts(&facts); }, [&] { return staging.send(on); },
      [&] {
        const int lanes = plan.lanes(all.states), threads = rtf::threads_for_acceptors(all, lanes);
        const unsigned blocks = static_cast<unsigned>(all.batch);
        const size_t part = rtf::kPart * sizeof(int32_t), rows = 2 * (all.states + all.most_used) * sizeof(float);
        if (part + rows <= static_cast<size_t>(facts.shared_per_block))
          return rtf::launch(rtf::best_paths<true>, blocks, threads, part + rows, on, all, list, work, lanes, path,
                             total);
        return rtf::launch(rtf::best_paths<false>, blocks, threads, part, on, all, list, work, lanes, path, total);
      });
}
}
