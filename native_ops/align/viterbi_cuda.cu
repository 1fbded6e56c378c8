// Best paths through chains of states on the GPU: one block per sequence, one thread per state.
#include "align_cuda.h"
#include "chain_device.h"

namespace rtf {
namespace {

constexpr int kMargin = 2;  // states before the first one
// The traceback runs in parts of this many frames, in which the state can decrease by 2 per frame.
constexpr int kPart = 32, kWindow = 2 * kPart + 1;

struct PathWork {
  float* rows;       // [batch, 2, row], used if shared memory is too small
  uint8_t* origins;  // [batch, frames, states]: how many states the best path to a live state advanced
  int32_t* staged;

  PathWork(const RtfScores& scores, int64_t states, Workspace* from) {
    rows = from->take<float>(scores.batch * 2 * (states + kMargin));
    origins = from->take<uint8_t>(scores.batch * scores.frames * states);
    staged = from->take<int32_t>(staged_chains(scores.batch, states));
  }
};

// What all threads of a block share besides the rows.
struct PathShared {
  int32_t state;
  int32_t visited[kPart];
  uint8_t window[kPart * kWindow];
};

// Takes the better path; the first one wins ties. NaN propagates.
__device__ __forceinline__ void improve(float way, uint8_t number, float* best, uint8_t* origin) {
  if (way > *best || way != way) {
    *best = way;
    *origin = number;
  }
}

struct Way {
  float score;
  uint8_t origin;
};

__device__ __forceinline__ Way best_way(const float* before, int s, bool loop, bool skip) {
  Way way = {loop ? before[s] : -INFINITY, 0};
  improve(before[s - 1], 1, &way.score, &way.origin);
  improve(skip ? before[s - 2] : -INFINITY, 2, &way.score, &way.origin);
  return way;
}

// Fills the origins; returns the row of the last frame.
__device__ const float* find_ways(const DeviceChains& chains, int b, const LiveChain& live, uint8_t* origins,
                                  float* rows) {
  const int n = live.states, frames = live.frames, mine = threadIdx.x;
  const int64_t row = chains.states + kMargin;
  for (int64_t i = mine; i < 2 * row; i += blockDim.x) rows[i] = -INFINITY;
  __syncthreads();
  const bool loop = mine < n && chains.may_loop(b, mine), skip = mine < n && chains.may_skip_to(b, mine);
  walk_chain(chains, b, live, true, [&](int t, int s, float x) {
    Way way = {0.0f, 0};
    if (t > 0) {
      const bool own = s == mine;
      way = best_way(rows + (t & 1) * row + kMargin, s, own ? loop : chains.may_loop(b, s),
                     own ? skip : chains.may_skip_to(b, s));
    }
    rows[(~t & 1) * row + kMargin + s] = way.score + x;
    origins[t * chains.states + s] = way.origin;
  });
  return rows + (frames & 1) * row + kMargin;
}

// Traceback from the last state: all threads load a part of the origins, one of them follows it.
__device__ void trace(const DeviceChains& chains, int b, const uint8_t* origins, PathShared* shared, int32_t* path) {
  int state = shared->state;
  for (int end = chains.lengths[b] - 1; end >= 0; end -= kPart) {
    const int lowest = state - 2 * kPart;
    for (int i = threadIdx.x; i < kPart * kWindow; i += blockDim.x) {
      const int t = end - i / kWindow, s = lowest + i % kWindow;
      shared->window[i] = t >= 0 && s >= 0 ? origins[t * chains.states + s] : 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int j = 0; j < kPart && j <= end; ++j) {
        shared->visited[j] = state;
        state -= shared->window[j * kWindow + state - lowest];
      }
      shared->state = state;
    }
    __syncthreads();
    state = shared->state;
    for (int j = threadIdx.x; j < kPart && j <= end; j += blockDim.x)
      path[(end - j) * chains.batch + b] = chains.class_of(b, shared->visited[j]);
  }
}

template <bool kShared>
__global__ void __launch_bounds__(1024)
    best_chain_paths(DeviceChains chains, PathWork work, int32_t* path, float* total) {
  const int b = blockIdx.x;
  const LiveChain live = chains.live(b);
  const int n = live.states, frames = live.frames;
  PathShared* shared = dynamic_shared<PathShared>();
  float* rows = kShared ? reinterpret_cast<float*>(shared + 1) : work.rows + b * 2 * (chains.states + kMargin);
  for (int64_t t = threadIdx.x; t < chains.frames; t += blockDim.x) path[t * chains.batch + b] = 0;
  if (frames == 0 || n == 0) {
    if (threadIdx.x == 0) total[b] = frames == 0 && chains.may_be_empty(n) ? 0.0f : -INFINITY;
    return;
  }
  uint8_t* origins = work.origins + b * chains.frames * chains.states;
  const float* last = find_ways(chains, b, live, origins, rows);
  const int before = n - 2;
  const int state = before >= live.at(frames - 1).first && last[before] > last[n - 1] ? before : n - 1;
  if (threadIdx.x == 0) {
    total[b] = last[state];
    shared->state = state;
  }
  const bool found = fabsf(last[state]) < INFINITY;
  __syncthreads();
  if (found) trace(chains, b, origins, shared, path);
}

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_chain_best_cuda_workspace(const RtfScores* scores, int64_t states) {
  rtf::Workspace workspace(nullptr);
  rtf::PathWork(*scores, states, &workspace);
  return workspace.size();
}

const char* rtf_chain_best_cuda_f32(const RtfScores* scores, const RtfChains* chains, int32_t* path, float* total,
                                    void* workspace, void* stream) {
  if (scores->batch == 0) return nullptr;
  rtf::Workspace memory(workspace);
  const rtf::PathWork work(*scores, chains->states, &memory);
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  rtf::Staging staging(work.staged);
  const rtf::DeviceChains all = rtf::device_chains(*scores, *chains, &staging);
  rtf::DeviceFacts facts;
  return rtf::first_error(
      [&] { return rtf::device_facts(&facts); }, [&] { return staging.send(on); },
      [&] {
        const int threads = rtf::threads_for(all.states);
        const unsigned blocks = static_cast<unsigned>(all.batch);
        const size_t rows = 2 * (all.states + rtf::kMargin) * sizeof(float), shared = sizeof(rtf::PathShared);
        if (rows + shared <= static_cast<size_t>(facts.shared_per_block))
          return rtf::launch(rtf::best_chain_paths<true>, blocks, threads, rows + shared, on, all, work, path, total);
        return rtf::launch(rtf::best_chain_paths<false>, blocks, threads, shared, on, all, work, path, total);
      });
}
}
