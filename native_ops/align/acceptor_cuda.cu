// Sums over the paths of finite-state acceptors on the GPU.
//
// Per sequence, one block walks forward over the frames while another one walks backward. A group of lanes adds up the
// edges into (or out of) a state, in double precision as on the CPU. Then one warp per frame computes the posteriors.
// States and edges that no path passes in a frame are left out (reach.h).
#include "acceptor_device.h"
#include "align_cuda.h"

namespace rtf {
namespace {

constexpr int kRowWarps = 4;

struct AcceptorWork {
  float2 *alpha, *beta;  // [batch, frames, states]: before each frame, and after it; of live states
  float2* weights[3];    // [batch, edges], in the order of each list
  ScaledDouble* rows;    // [batch, 2, 2, states], used if shared memory is too small
  float2* emitted;       // [batch, 2, 2, most used classes], likewise
  ScaledDouble* sums;    // [batch]
  int32_t* staged;

  AcceptorWork(const RtfScores& scores, const RtfAcceptors& acceptors, Workspace* from) {
    const int64_t cells = scores.batch * scores.frames * acceptors.states,
                  most_used = most_used_classes(scores, acceptors);
    alpha = from->take<float2>(cells);
    beta = from->take<float2>(cells);
    for (float2*& list : weights) list = from->take<float2>(scores.batch * acceptors.edges);
    rows = from->take<ScaledDouble>(scores.batch * 4 * acceptors.states);
    emitted = from->take<float2>(scores.batch * 4 * most_used);
    sums = from->take<ScaledDouble>(scores.batch);
    const int64_t lists = 2 * staged_list(scores.batch, acceptors.edges, acceptors.states) +
                          staged_list(scores.batch, acceptors.edges, most_used);
    staged = from->take<int32_t>(staged_acceptors(scores, acceptors) + lists);
  }
};

struct AcceptorLists {
  ArcList by_goal, by_origin, by_class;
};

__global__ void weigh_edges(DeviceAcceptors all, ArcList list, float2* weights) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= all.batch * all.edges) return;
  const int64_t b = i / all.edges;
  const bool exists = i - b * all.edges < list.starts[b * (list.keys + 1) + list.keys];
  weights[i] = pair_of(exists ? number_exp(-all.costs[b * all.edges + list.edge[i]]) : none());
}

// Sum over a group of lanes, valid in its lane 0. lanes: a power of two.
__device__ __forceinline__ ScaledDouble group_sum(ScaledDouble sum, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    const double m = __shfl_down_sync(kAllLanes, sum.m, offset, lanes),
                 e = __shfl_down_sync(kAllLanes, sum.e, offset, lanes);
    sum.add(m, e);
  }
  return sum;
}

// The edges of a sequence in the order of a walk.
struct Edges {
  const int32_t *starts, *others,
      *label;  // per state; source of each edge, in walk order; its class
  const float2* weights;
};

// to: the live states at each frame before its edges are taken. Returns the states after the last step.
__device__ __forceinline__ const ScaledDouble* walk(const DeviceAcceptors& all, const Edges& edges, int b, bool forward,
                                                    int lanes, ScaledDouble* rows, Number* emitted, float2* to) {
  const int n = all.num_states[b], lane = threadIdx.x % lanes, last = all.lengths[b] - 1;
  const int begin = forward ? 0 : n - 1;
  for (int s = threadIdx.x; s < n; s += blockDim.x) {
    rows[s] = rows[all.states + s] = ScaledDouble();
    if (s != begin) continue;
    rows[s].add(1.0, 0.0);
    if (last >= 0) to[(forward ? 0 : last) * all.states + s] = make_float2(1.0f, 0.0f);
  }
  walk_acceptor(
      all, b, forward, emitted, [](float x) { return number_exp(x); },
      [&](int i, int t, const Number* x) {
        const ScaledDouble* now = rows + (i & 1) * all.states;
        ScaledDouble* next = rows + (~i & 1) * all.states;
        for_groups(all, b, forward ? t + 1 : t, lanes, edges.starts, [&](int s, int from, int end) {
          ScaledDouble sum;
          for (int j = from + lane; j < end; j += lanes) {
            const ScaledDouble state = now[__ldg(edges.others + j)];
            if (state.is_none()) continue;
            const Number weight = number_of(__ldg(edges.weights + j)), score = x[__ldg(edges.label + j)];
            sum.add(state.m * score.m * weight.m, state.e + score.e + weight.e);
          }
          sum = group_sum(sum, lanes);
          if (s < 0 || lane != 0) return;
          sum.normalise();
          next[s] = sum;
          const int beside = forward ? t + 1 : t - 1;
          if (beside >= 0 && beside <= last) to[beside * all.states + s] = make_float2(sum.m, sum.e);
        });
      });
  return rows + ((last + 1) & 1) * all.states;
}

template <bool kShared>
__global__ void __launch_bounds__(512)
    walk_acceptors(DeviceAcceptors all, AcceptorLists lists, AcceptorWork work, int lanes) {
  const int b = blockIdx.x;
  const bool forward = blockIdx.y == 0;
  const int64_t which = b * 2 + blockIdx.y, first = b * all.edges;
  ScaledDouble* rows = kShared ? dynamic_shared<ScaledDouble>() : work.rows + which * 2 * all.states;
  Number* emitted = reinterpret_cast<Number*>(kShared ? reinterpret_cast<float2*>(rows + 2 * all.states)
                                                      : work.emitted + which * 2 * all.most_used);
  const Edges edges = {(forward ? lists.by_goal.starts : lists.by_origin.starts) + b * (all.states + 1),
                       (forward ? lists.by_goal.from : lists.by_origin.to) + first,
                       (forward ? lists.by_goal.label : lists.by_origin.label) + first,
                       (forward ? work.weights[0] : work.weights[1]) + first};
  float2* to = (forward ? work.alpha : work.beta) + b * all.frames * all.states;
  const ScaledDouble* last = walk(all, edges, b, forward, lanes, rows, emitted, to);
  if (forward && threadIdx.x == 0) work.sums[b] = last[all.num_states[b] - 1];
}

// The posteriors; one warp per frame.
__global__ void write_posteriors(DeviceAcceptors all, ArcList list, AcceptorWork work, int lanes, float* posteriors) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kRowWarps) + threadIdx.x / kWarp, t = at / all.batch;
  if (t >= all.frames) return;
  const int b = static_cast<int>(at % all.batch), in_warp = threadIdx.x % kWarp, lane = in_warp % lanes;
  const float* values = all.values + at * all.classes;
  float* row = posteriors + at * all.classes;
  for (int64_t k = in_warp; k < all.classes; k += kWarp) row[k] = 0.0f;
  const ScaledDouble total = work.sums[b];
  if (t >= all.lengths[b] || total.is_none()) return;
  __syncwarp();
  const int64_t place = (b * all.frames + t) * all.states, first = b * all.edges;
  const int32_t* starts = list.starts + b * (list.keys + 1);
  const int n = all.num_used[b], groups = kWarp / lanes;
  for (int begin = 0; begin < n; begin += groups) {
    const int u = begin + in_warp / lanes;
    const bool exists = u < n;
    const int32_t label = exists ? all.used[b * all.most_used + u] : 0;
    const Number score = exists ? number_exp(values[label]) : none();
    double sum = 0.0;
    for (int j = exists ? starts[u] + lane : 0; exists && j < starts[u + 1]; j += lanes) {
      const int32_t from = list.from[first + j], to = list.to[first + j];
      if (!all.is_live(b, from, t) || !all.is_live(b, to, t + 1)) continue;
      const Number before = number_of(work.alpha[place + from]), after = number_of(work.beta[place + to]),
                   weight = number_of(work.weights[2][first + j]);
      const double e = fmin(static_cast<double>(before.e) + after.e + score.e + weight.e - total.e, 2.0) - 2.0;
      sum += static_cast<double>(before.m) * after.m * score.m * weight.m / total.m * ScaledDouble::power(e) * 4.0;
    }
    for (int offset = lanes / 2; offset > 0; offset /= 2) sum += __shfl_down_sync(kAllLanes, sum, offset, lanes);
    if (exists && lane == 0) row[label] = static_cast<float>(sum);
  }
}

__global__ void acceptor_totals(int64_t batch, AcceptorWork work, float* total) {
  const int64_t b = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (b < batch) total[b] = static_cast<float>(work.sums[b].log());
}

cudaError_t weigh(const DeviceAcceptors& all, const AcceptorLists& lists, const AcceptorWork& work,
                  cudaStream_t stream) {
  const ArcList* each[] = {&lists.by_goal, &lists.by_origin, &lists.by_class};
  const unsigned blocks = blocks_for(all.batch * all.edges, 128);
  cudaError_t error = cudaSuccess;
  for (int i = 0; i < 3 && blocks && error == cudaSuccess; ++i)
    error = launch(weigh_edges, blocks, 128, 0, stream, all, *each[i], work.weights[i]);
  return error;
}

cudaError_t run_walks(const DeviceAcceptors& all, const AcceptorLists& lists, const AcceptorWork& work, int lanes,
                      const DeviceFacts& facts, cudaStream_t stream) {
  const int threads = threads_for_acceptors(all, lanes);
  const size_t shared = 2 * (all.states * sizeof(ScaledDouble) + all.most_used * sizeof(Number));
  const dim3 grid(static_cast<unsigned>(all.batch), 2);
  if (shared <= static_cast<size_t>(facts.shared_per_block))
    return launch(walk_acceptors<true>, grid, threads, shared, stream, all, lists, work, lanes);
  return launch(walk_acceptors<false>, grid, threads, 0, stream, all, lists, work, lanes);
}

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_acceptor_cuda_workspace(const RtfScores* scores, const RtfAcceptors* acceptors) {
  rtf::Workspace workspace(nullptr);
  rtf::AcceptorWork(*scores, *acceptors, &workspace);
  return workspace.size();
}

const char* rtf_acceptor_soft_cuda_f32(const RtfScores* scores, const RtfAcceptors* acceptors, float* posteriors,
                                       float* total, void* workspace, void* stream) {
  if (scores->batch == 0) return nullptr;
  rtf::Workspace memory(workspace);
  const rtf::AcceptorWork work(*scores, *acceptors, &memory);
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  using Plan = rtf::AcceptorPlan;
  const Plan plan(*scores, *acceptors);
  rtf::Staging staging(work.staged);
  const rtf::DeviceAcceptors all = plan.stage(&staging);
  const rtf::AcceptorLists lists = {plan.stage_list(&Plan::Arc::to, all.states, &staging),
                                    plan.stage_list(&Plan::Arc::from, all.states, &staging),
                                    plan.stage_list(&Plan::Arc::label, all.most_used, &staging)};
  rtf::DeviceFacts facts;
  const unsigned rows = rtf::blocks_for(all.frames * all.batch, rtf::kRowWarps),
                 totals = rtf::blocks_for(all.batch, 128);
  return rtf::first_error(
      [&] { return rtf::device_facts(&facts); }, [&] { return staging.send(on); },
      [&] { return rtf::weigh(all, lists, work, on); },
      [&] { return rtf::run_walks(all, lists, work, plan.lanes(all.states), facts, on); },
      [&] { return rtf::launch(rtf::acceptor_totals, totals, 128, 0, on, all.batch, work, total); },
      [&] {
        if (rows == 0) return cudaSuccess;
        const int lanes = plan.lanes(std::max<int64_t>(all.most_used, 1)), threads = rtf::kRowWarps * rtf::kWarp;
        return rtf::launch(rtf::write_posteriors, rows, threads, 0, on, all, lists.by_class, work, lanes, posteriors);
      });
}
}
