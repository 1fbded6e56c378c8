// Sums over chains of states on the GPU: posteriors, and CTC with its gradient.
//
// Three blocks per sequence: one walks forward over the frames, one backward at the same time, and one finds the states
// that share a class. Each thread has one state; neighbours communicate through shared memory, with one barrier per
// frame, and scores are prefetched some frames ahead. Then one warp per frame and sequence computes the posteriors from
// both walks. All of them leave out the states that no alignment can be in at a frame (live.h).
#include "align_cuda.h"
#include "chain_device.h"

namespace rtf {
namespace {

constexpr int kMargin = 2;  // unreachable states before the first and after the last one
constexpr int kRowWarps = 4;

enum Outcome { kNoAlignment, kAligned, kOnlySoftmax };
enum Role { kForward, kBackward, kSameClass, kRoles };

struct ChainWork {
  float2 *alpha, *beta;      // [batch, frames, states]: of live states; beta without the score of its own frame
  float2* rows;              // [batch, 2, 2, row], used if shared memory is too small
  float* offset;             // [frames, batch]
  ScaledDouble* sums;        // [batch]
  int32_t* outcome;          // [batch]
  int32_t *next, *previous;  // [batch, states]: states of the same class; -1: none
  int32_t* staged;

  ChainWork(const RtfScores& scores, int64_t states, Workspace* from) {
    const int64_t all = scores.batch * states;
    alpha = from->take<float2>(all * scores.frames);
    beta = from->take<float2>(all * scores.frames);
    rows = from->take<float2>(scores.batch * 4 * (states + 2 * kMargin));
    offset = from->take<float>(scores.frames * scores.batch);
    sums = from->take<ScaledDouble>(scores.batch);
    outcome = from->take<int32_t>(scores.batch);
    next = from->take<int32_t>(all);
    previous = from->take<int32_t>(all);
    staged = from->take<int32_t>(staged_chains(scores.batch, states));
  }
};

__global__ void log_sums(DeviceChains chains, float* offset) {
  const int64_t row = blockIdx.x * static_cast<int64_t>(kRowWarps) + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= chains.frames * chains.batch || row / chains.batch >= chains.lengths[row % chains.batch]) return;
  const float sum = warp_log_sum(chains.values + row * chains.classes, chains.classes, lane);
  if (lane == 0) offset[row] = sum;
}

// What a thread keeps for its first state, and looks up for the others.
struct Ways {
  bool loop, skip;
};

__device__ __forceinline__ Ways ways_into(const DeviceChains& chains, int b, int s) {
  return {chains.may_loop(b, s), chains.may_skip_to(b, s)};
}

__device__ __forceinline__ Ways ways_out_of(const DeviceChains& chains, int b, int n, int s) {
  return {chains.may_loop(b, s), s + 2 < n && chains.may_skip_to(b, s + 2)};
}

// Sum over the state itself and its next two neighbours in one direction.
__device__ __forceinline__ Number gather(const float2* row, int s, int direction, Ways ways, Number factor) {
  const Number stay = ways.loop ? number_of(row[s]) : none();
  const Number jump = ways.skip ? number_of(row[s + 2 * direction]) : none();
  return sum_times(stay, number_of(row[s + direction]), jump, factor);
}

__device__ void walk_forward(const DeviceChains& chains, const ChainWork& work, int b, float2* rows) {
  const LiveChain live = chains.live(b);
  const int n = live.states, frames = live.frames, mine = threadIdx.x;
  const int64_t row = chains.states + 2 * kMargin;
  clear_rows(rows, 2 * row);
  const Ways own = mine < n ? ways_into(chains, b, mine) : Ways{};
  float2* alpha = work.alpha + b * chains.frames * chains.states;
  walk_chain(chains, b, live, true, [&](int t, int s, float x) {
    const float2* before = rows + (t & 1) * row + kMargin;
    float2* now = rows + (~t & 1) * row + kMargin;
    const Number emitted = number_exp(x);
    const Ways ways = s == mine ? own : ways_into(chains, b, s);
    const Number here = t ? gather(before, s, -1, ways, emitted) : normalised(emitted.m, emitted.e);
    now[s] = alpha[t * chains.states + s] = pair_of(here);
  });
  if (mine != 0) return;
  ScaledDouble sum;
  if (frames == 0) {
    if (chains.may_be_empty(n)) sum.add(1.0, 0.0);
  } else {
    const float2* last = rows + (frames & 1) * row + kMargin;
    const LiveStates ends = live.at(frames - 1);
    for (int s = ends.first; s < ends.end; ++s) sum.add(last[s].x, last[s].y);
  }
  work.sums[b] = sum;
}

__device__ void walk_backward(const DeviceChains& chains, const ChainWork& work, int b, float2* rows) {
  const LiveChain live = chains.live(b);
  const int n = live.states, last = live.frames - 1, mine = threadIdx.x;
  const int64_t row = chains.states + 2 * kMargin;
  clear_rows(rows, 2 * row);
  const Ways own = mine < n ? ways_out_of(chains, b, n, mine) : Ways{};
  float2* beta = work.beta + b * chains.frames * chains.states;
  walk_chain(chains, b, live, false, [&](int t, int s, float x) {
    const float2* after = rows + (t & 1) * row + kMargin;
    float2* now = rows + (~t & 1) * row + kMargin;
    const Ways ways = s == mine ? own : ways_out_of(chains, b, n, s);
    const Number one = {1.0f, 0.0f};
    const Number here = t < last ? gather(after, s, 1, ways, one) : one;
    beta[t * chains.states + s] = pair_of(here);
    const Number emitted = number_exp(x);
    now[s] = pair_of(normalised(here.m * emitted.m, here.e + emitted.e));
  });
}

__device__ void link_same_classes(const DeviceChains& chains, const ChainWork& work, int b) {
  const int n = chains.num_states(b);
  for (int s = threadIdx.x; s < n; s += blockDim.x) {
    const int32_t label = chains.class_of(b, s);
    int after = s + 1, before = s - 1;
    while (after < n && chains.class_of(b, after) != label) ++after;
    while (before >= 0 && chains.class_of(b, before) != label) --before;
    work.next[b * chains.states + s] = after < n ? after : -1;
    work.previous[b * chains.states + s] = before;
  }
}

template <bool kShared>
__global__ void __launch_bounds__(1024) walk_chains(DeviceChains chains, ChainWork work) {
  const int b = blockIdx.x, role = blockIdx.y;
  float2* rows = kShared ? dynamic_shared<float2>() : work.rows + (b * 2 + role) * 2 * (chains.states + 2 * kMargin);
  if (role == kForward)
    walk_forward(chains, work, b, rows);
  else if (role == kBackward)
    walk_backward(chains, work, b, rows);
  else
    link_same_classes(chains, work, b);
}

// The logs of the sums, as returned with posteriors.
__global__ void chain_totals(int64_t batch, ChainWork work, float* total) {
  const int64_t b = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (b >= batch) return;
  total[b] = static_cast<float>(work.sums[b].log());
  work.outcome[b] = work.sums[b].is_none() ? kNoAlignment : kAligned;
}

// The CTC losses; one warp per sequence.
__global__ void ctc_losses(DeviceChains chains, ChainWork work, int normalized, int softmax, float* loss) {
  const int64_t b = blockIdx.x;
  const int32_t* labels = chains.symbols + b * chains.width;
  const int32_t count = chains.counts[b];
  int needed = 0;  // one frame per label, plus one for the blank between equal labels
  for (int i = threadIdx.x; i < count; i += kWarp)
    needed += 1 + (chains.label_loop && i > 0 && labels[i] == labels[i - 1]);
  for (int offset = kWarp / 2; offset > 0; offset /= 2) needed += __shfl_xor_sync(kAllLanes, needed, offset);
  if (threadIdx.x != 0) return;
  const ScaledDouble sum = work.sums[b];
  const bool too_few = needed > chains.lengths[b];
  const float impossible = normalized ? 0.0f : INFINITY;
  loss[b] = too_few ? 0.0f : sum.is_none() ? impossible : static_cast<float>(-sum.log());
  work.outcome[b] = too_few         ? (softmax && !normalized ? kOnlySoftmax : kNoAlignment)
                    : sum.is_none() ? kNoAlignment
                                    : kAligned;
}

// to [frames, batch, classes] = (the softmax if there is an offset, else 0) + sign * posteriors; 0 in padded frames.
// shares: [warps, states] in shared memory, or the memory of alpha.
template <bool kShared>
__global__ void write_frames(DeviceChains chains, ChainWork work, float sign, float* to) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t at = blockIdx.x * static_cast<int64_t>(kRowWarps) + warp, t = at / chains.batch;
  if (t >= chains.frames) return;
  const int b = static_cast<int>(at % chains.batch), n = chains.num_states(b);
  const int outcome = t < chains.lengths[b] ? work.outcome[b] : static_cast<int>(kNoAlignment);
  const float* values = chains.values + at * chains.classes;
  float* row = to + at * chains.classes;
  const bool softmax = chains.offset && outcome != kNoAlignment;
  const float offset = softmax ? chains.offset[at] : 0.0f;
  for (int64_t k = lane; k < chains.classes; k += kWarp) row[k] = softmax ? expf(values[k] - offset) : 0.0f;
  if (outcome != kAligned || n == 0) return;

  const int64_t place = (b * chains.frames + t) * chains.states;
  float2 *alpha = work.alpha + place, *beta = work.beta + place;
  float* shares = kShared ? dynamic_shared<float>() + warp * chains.states : reinterpret_cast<float*>(beta);
  const ScaledDouble total = work.sums[b];
  const LiveStates live = chains.live(b).at(static_cast<int>(t));
  // Most states of CTC share the class of the first one, the blank: they are summed by all lanes.
  const int32_t common = chains.class_of(b, 0);
  float sum = 0.0f;
  for (int begin = live.first; begin < live.end; begin += kWarp) {
    const int s = begin + lane;
    const float share = s < live.end ? share_of(number_of(alpha[s]), number_of(beta[s]), total) : 0.0f;
    __syncwarp();  // shares may alias beta: the values of these states are written after all lanes have read theirs
    if (s < live.end) shares[s] = share;
    if (s < live.end && chains.class_of(b, s) == common) sum += share;
  }
  sum = warp_sum(sum);
  __syncwarp();
  const int32_t *next = work.next + b * chains.states, *previous = work.previous + b * chains.states;
  for (int s = live.first + lane; s < live.end; s += kWarp) {
    const int32_t label = chains.class_of(b, s);
    if (previous[s] >= live.first || label == common) continue;  // the first of its class adds up all
    float own = 0.0f;
    for (int same = s; same >= 0 && same < live.end; same = next[same]) own += shares[same];
    row[label] += sign * own;
  }
  if (lane == 0) row[common] += sign * sum;
}

// Both walks. The rows of states are in shared memory if they fit.
cudaError_t run_walks(const DeviceChains& chains, const ChainWork& work, const DeviceFacts& facts,
                      cudaStream_t stream) {
  const int threads = threads_for(chains.states);
  const size_t shared = 2 * (chains.states + 2 * kMargin) * sizeof(float2);
  const dim3 grid(static_cast<unsigned>(chains.batch), kRoles);
  if (shared <= static_cast<size_t>(facts.shared_per_block))
    return launch(walk_chains<true>, grid, threads, shared, stream, chains, work);
  return launch(walk_chains<false>, grid, threads, 0, stream, chains, work);
}

cudaError_t run_frames(const DeviceChains& chains, const ChainWork& work, const DeviceFacts& facts, float sign,
                       float* to, cudaStream_t stream) {
  const size_t shared = kRowWarps * chains.states * sizeof(float);
  const unsigned blocks = blocks_for(chains.frames * chains.batch, kRowWarps);
  if (blocks == 0) return cudaSuccess;
  if (shared <= static_cast<size_t>(facts.shared_per_block) / 2)
    return launch(write_frames<true>, blocks, kRowWarps * kWarp, shared, stream, chains, work, sign, to);
  return launch(write_frames<false>, blocks, kRowWarps * kWarp, 0, stream, chains, work, sign, to);
}

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_chain_cuda_workspace(const RtfScores* scores, int64_t states) {
  rtf::Workspace workspace(nullptr);
  rtf::ChainWork(*scores, states, &workspace);
  return workspace.size();
}

const char* rtf_chain_soft_cuda_f32(const RtfScores* scores, const RtfChains* chains, float* posteriors, float* total,
                                    void* workspace, void* stream) {
  if (scores->batch == 0) return nullptr;
  rtf::Workspace memory(workspace);
  const rtf::ChainWork work(*scores, chains->states, &memory);
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  rtf::Staging staging(work.staged);
  const rtf::DeviceChains all = rtf::device_chains(*scores, *chains, &staging);
  rtf::DeviceFacts facts;
  return rtf::first_error([&] { return rtf::device_facts(&facts); }, [&] { return staging.send(on); },
                          [&] { return rtf::run_walks(all, work, facts, on); },
                          [&] {
                            return rtf::launch(rtf::chain_totals, rtf::blocks_for(all.batch, 128), 128, 0, on,
                                               all.batch, work, total);
                          },
                          [&] { return rtf::run_frames(all, work, facts, 1.0f, posteriors, on); });
}

const char* rtf_ctc_cuda_f32(const RtfScores* scores, const RtfCtc* ctc, float* loss, float* gradient, void* workspace,
                             void* stream) {
  if (scores->batch == 0) return nullptr;
  rtf::Workspace memory(workspace);
  const rtf::ChainWork work(*scores, 2 * ctc->max_labels + 1, &memory);
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  rtf::Staging staging(work.staged);
  rtf::DeviceChains all = rtf::device_ctc(*scores, *ctc, &staging);
  rtf::DeviceFacts facts;
  const unsigned rows = rtf::blocks_for(all.frames * all.batch, rtf::kRowWarps);
  if (!ctc->normalized) all.offset = work.offset;
  return rtf::first_error([&] { return rtf::device_facts(&facts); }, [&] { return staging.send(on); },
                          [&] {
                            if (ctc->normalized || rows == 0) return cudaSuccess;
                            return rtf::launch(rtf::log_sums, rows, rtf::kRowWarps * rtf::kWarp, 0, on, all,
                                               work.offset);
                          },
                          [&] { return rtf::run_walks(all, work, facts, on); },
                          [&] {
                            return rtf::launch(rtf::ctc_losses, static_cast<unsigned>(all.batch), rtf::kWarp, 0, on,
                                               all, work, ctc->normalized, ctc->softmax_without_alignment, loss);
                          },
                          [&] { return rtf::run_frames(all, work, facts, -1.0f, gradient, on); });
}
}
