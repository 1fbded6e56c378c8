// Sums over the alignments of transducers on the GPU, with gradients.
//
// As on the CPU, the lattice is walked step by step (see transducer_cpu.cc): the states of a step depend on the
// previous step only. One block walks forward and one backward, with one thread per number of labels. Before and after,
// one warp per frame and number of labels reads the scores of all classes and writes their gradient. States and cells
// that no alignment passes are left out (live.h).
#include "align_cuda.h"
#include "live.h"
#include "number.h"
#include "staging.h"

namespace rtf {
namespace {

constexpr int kAhead = 4;  // steps that scores are prefetched ahead
constexpr int kCellWarps = 4;

struct DeviceTransducer {
  int64_t batch, frames, max_labels, classes;
  const float* values;  // [batch, frames, max_labels + 1, classes]
  const int32_t *lengths, *labels, *counts;
  int32_t blank;
  int label_takes_frame, normalized;

  __device__ int steps(int b) const { return lengths[b] + (label_takes_frame ? 0 : counts[b]); }
  // The numbers of labels after each number of steps.
  __device__ LiveChain live(int b) const { return {counts[b] + 1, steps(b) + 1, 1, 1}; }
  // The step at which a frame is read after u labels, and the inverse.
  __device__ int step_of(int t, int u) const { return label_takes_frame ? t : t + u; }
  __device__ int frame_of(int d, int u) const { return label_takes_frame ? d : d - u; }
};

struct LatticeWork {
  float2 *alpha, *beta;  // [batch, steps + 1, max_labels + 1], of live states
  float2* emitted;       // of the blank and of the next label, same layout
  float* log_sums;       // [batch, frames, max_labels + 1]
  float2* rows;          // [batch, 2, 2, row], used if shared memory is too small
  ScaledDouble* sums;    // [batch]
  int32_t* staged;

  LatticeWork(const RtfTransducer& all, Workspace* from) {
    const int64_t row = all.max_labels + 1, cells = all.batch * (all.frames + all.max_labels + 1) * row;
    alpha = from->take<float2>(cells);
    beta = from->take<float2>(cells);
    emitted = from->take<float2>(cells);
    log_sums = from->take<float>(all.batch * all.frames * row);
    rows = from->take<float2>(all.batch * 4 * (row + 1));
    sums = from->take<ScaledDouble>(all.batch);
    staged = from->take<int32_t>(all.batch * (2 + all.max_labels));
  }
};

// Offset of state u of step d of sequence b.
__device__ __forceinline__ int64_t place(const DeviceTransducer& all, int b, int d, int u) {
  return (b * (all.frames + all.max_labels + 1) + d) * (all.max_labels + 1) + u;
}

// One warp per frame t and number of labels u of sequence b.
struct Cell {
  int64_t index;
  int b, t, u, lane;
  bool exists, is_live;  // whether an alignment may pass it

  __device__ explicit Cell(const DeviceTransducer& all)
      : index(blockIdx.x * static_cast<int64_t>(kCellWarps) + threadIdx.x / kWarp) {
    const int64_t rows = all.max_labels + 1;
    lane = threadIdx.x % kWarp;
    u = static_cast<int>(index % rows);
    t = static_cast<int>(index / rows % all.frames);
    b = static_cast<int>(index / rows / all.frames);
    exists = b < all.batch;
    is_live = exists && t < all.lengths[b] && u <= all.counts[b] && all.live(b).at(all.step_of(t, u)).has(u);
  }
};

__global__ void read_cells(DeviceTransducer all, LatticeWork work) {
  const Cell cell(all);
  if (!cell.is_live) return;
  const float* x = all.values + cell.index * all.classes;
  const float log_sum = all.normalized ? 0.0f : warp_log_sum(x, all.classes, cell.lane);
  if (cell.lane != 0) return;
  const bool has_label = cell.u < all.counts[cell.b];
  const float label = has_label ? x[all.labels[cell.b * all.max_labels + cell.u]] - log_sum : -INFINITY;
  work.emitted[place(all, cell.b, all.step_of(cell.t, cell.u), cell.u)] = make_float2(x[all.blank] - log_sum, label);
  work.log_sums[cell.index] = log_sum;
}

// Log probabilities of the two transitions out of state u of step d; -infinity if there is none.
__device__ __forceinline__ float2 ways_on(const DeviceTransducer& all, const LatticeWork& work, int b, int d, int u) {
  const int t = all.frame_of(d, u);
  const bool exists = t >= 0 && t < all.lengths[b] && all.live(b).at(d).has(u);
  return exists ? work.emitted[place(all, b, d, u)] : make_float2(-INFINITY, -INFINITY);
}

__device__ __forceinline__ Number times(Number a, Number b) { return {a.m * b.m, a.e + b.e}; }

// The transitions into state u of step d + 1: from u by the blank, from u - 1 by its label.
__device__ __forceinline__ float2 ways_into(const DeviceTransducer& all, const LatticeWork& work, int b, int d, int u) {
  return make_float2(ways_on(all, work, b, d, u).x, ways_on(all, work, b, d, u - 1).y);
}

// Calls step(d, u, transitions into or out of u) for all steps, from the first or from the last, and all states of the
// thread that are live where the transitions lead in this direction, with a barrier after each step.
template <typename Step>
__device__ void walk_lattice(const DeviceTransducer& all, const LatticeWork& work, int b, bool forward,
                             const Step& step) {
  const LiveChain live = all.live(b);
  const int steps = live.frames - 1, mine = threadIdx.x;
  const auto at = [&](int i) { return forward ? i : steps - 1 - i; };
  const auto reached = [&](int i) { return live.at(forward ? i + 1 : steps - 1 - i); };
  const auto read = [&](int i, int u) {
    return forward ? ways_into(all, work, b, i, u) : ways_on(all, work, b, steps - 1 - i, u);
  };
  const auto read_mine = [&](int i) {
    return i < steps && reached(i).has(mine) ? read(i, mine) : make_float2(0.0f, 0.0f);
  };
  float2 ahead[kAhead];
#pragma unroll
  for (int j = 0; j < kAhead; ++j) ahead[j] = read_mine(j);
  for (int begin = 0; begin < steps; begin += kAhead) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = begin + j;
      if (i < steps) {
        const float2 x = ahead[j];
        ahead[j] = read_mine(i + kAhead);
        const LiveStates now = reached(i);
        if (now.has(mine)) step(at(i), mine, x);
        for (int u = mine + blockDim.x; u < now.end; u += blockDim.x)
          if (u >= now.first) step(at(i), u, read(i, u));
        __syncthreads();
      }
    }
  }
}

__device__ __forceinline__ Number one() { return {1.0f, 0.0f}; }

// rows [2, row]: a margin, then the states.
__device__ void walk_forward(const DeviceTransducer& all, const LatticeWork& work, int b, float2* rows) {
  const int n = all.counts[b] + 1, steps = all.steps(b);
  const int64_t row = all.max_labels + 2;
  clear_rows(rows, 2 * row);
  if (threadIdx.x == 0) rows[1] = work.alpha[place(all, b, 0, 0)] = pair_of(one());
  __syncthreads();
  walk_lattice(all, work, b, true, [&](int d, int u, float2 x) {
    const float2* now = rows + (d & 1) * row + 1;
    const Number stay = times(number_of(now[u]), number_exp(x.x));
    const Number sum = sum_times(stay, times(number_of(now[u - 1]), number_exp(x.y)), none(), one());
    rows[(~d & 1) * row + 1 + u] = work.alpha[place(all, b, d + 1, u)] = pair_of(sum);
  });
  if (threadIdx.x != 0) return;
  ScaledDouble sum;
  const float2 last = rows[(steps & 1) * row + n];
  sum.add(last.x, last.y);
  work.sums[b] = sum;
}

// rows [2, row]: the states, then a margin.
__device__ void walk_backward(const DeviceTransducer& all, const LatticeWork& work, int b, float2* rows) {
  const int n = all.counts[b] + 1, steps = all.steps(b);
  const int64_t row = all.max_labels + 2;
  clear_rows(rows, 2 * row);
  if (threadIdx.x == 0) rows[(steps & 1) * row + n - 1] = work.beta[place(all, b, steps, n - 1)] = pair_of(one());
  __syncthreads();
  walk_lattice(all, work, b, false, [&](int d, int u, float2 x) {
    const float2* next = rows + (~d & 1) * row;
    const Number stay = times(number_of(next[u]), number_exp(x.x));
    const Number go = times(number_of(next[u + 1]), number_exp(x.y));
    rows[(d & 1) * row + u] = work.beta[place(all, b, d, u)] = pair_of(sum_times(stay, go, none(), one()));
  });
}

template <bool kShared>
__global__ void __launch_bounds__(1024) walk_lattices(DeviceTransducer all, LatticeWork work) {
  const int b = blockIdx.x, backward = blockIdx.y;
  float2* rows = kShared ? dynamic_shared<float2>() : work.rows + (b * 2 + backward) * 2 * (all.max_labels + 2);
  if (backward)
    walk_backward(all, work, b, rows);
  else
    walk_forward(all, work, b, rows);
}

__global__ void write_cells(DeviceTransducer all, LatticeWork work, float* gradient) {
  const Cell cell(all);
  if (!cell.exists) return;
  const ScaledDouble total = work.sums[cell.b];
  const float* x = all.values + cell.index * all.classes;
  float* row = gradient + cell.index * all.classes;
  float blank = 0.0f, label = 0.0f;
  const bool has_ways = cell.is_live && !total.is_none();
  if (has_ways) {
    const int d = all.step_of(cell.t, cell.u);
    const int64_t here = place(all, cell.b, d, cell.u), next = place(all, cell.b, d + 1, cell.u);
    const Number before = number_of(work.alpha[here]);
    const float2 ways = work.emitted[here];
    if (all.live(cell.b).at(d + 1).has(cell.u))
      blank = share_of(before, times(number_of(work.beta[next]), number_exp(ways.x)), total);
    if (cell.u < all.counts[cell.b])
      label = share_of(before, times(number_of(work.beta[next + 1]), number_exp(ways.y)), total);
  }
  const bool softmax = has_ways && !all.normalized;
  const float log_sum = softmax ? work.log_sums[cell.index] : 0.0f, factor = blank + label;
  for (int64_t k = cell.lane; k < all.classes; k += kWarp) row[k] = softmax ? factor * expf(x[k] - log_sum) : 0.0f;
  __syncwarp();
  if (cell.lane != 0 || !has_ways) return;
  row[all.blank] -= blank;
  if (cell.u < all.counts[cell.b]) row[all.labels[cell.b * all.max_labels + cell.u]] -= label;
}

__global__ void lattice_losses(int64_t batch, LatticeWork work, float* loss) {
  const int64_t b = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (b < batch) loss[b] = work.sums[b].is_none() ? 0.0f : static_cast<float>(-work.sums[b].log());
}

cudaError_t run_lattices(const DeviceTransducer& all, const LatticeWork& work, const DeviceFacts& facts,
                         cudaStream_t stream) {
  const int threads = threads_for(all.max_labels + 1);
  const size_t shared = 2 * (all.max_labels + 2) * sizeof(float2);
  const dim3 grid(static_cast<unsigned>(all.batch), 2);
  if (shared <= static_cast<size_t>(facts.shared_per_block))
    return launch(walk_lattices<true>, grid, threads, shared, stream, all, work);
  return launch(walk_lattices<false>, grid, threads, 0, stream, all, work);
}

DeviceTransducer device_transducer(const RtfTransducer& all, Staging* staging) {
  DeviceTransducer to{all.batch, all.frames, all.max_labels, all.classes, all.values};
  to.lengths = staging->add(all.lengths, all.batch);
  to.labels = staging->add(all.labels, all.batch * all.max_labels);
  to.counts = staging->add(all.label_lengths, all.batch);
  to.blank = all.blank;
  to.label_takes_frame = all.label_takes_frame;
  to.normalized = all.normalized;
  return to;
}

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_transducer_cuda_workspace(const RtfTransducer* transducer) {
  rtf::Workspace workspace(nullptr);
  rtf::LatticeWork(*transducer, &workspace);
  return workspace.size();
}

const char* rtf_transducer_cuda_f32(const RtfTransducer* transducer, float* loss, float* gradient, void* workspace,
                                    void* stream) {
  if (transducer->batch == 0) return nullptr;
  rtf::Workspace memory(workspace);
  const rtf::LatticeWork work(*transducer, &memory);
  const cudaStream_t on = static_cast<cudaStream_t>(stream);
  rtf::Staging staging(work.staged);
  const rtf::DeviceTransducer all = rtf::device_transducer(*transducer, &staging);
  rtf::DeviceFacts facts;
  const unsigned cells = rtf::blocks_for(all.batch * all.frames * (all.max_labels + 1), rtf::kCellWarps);
  const int threads = rtf::kCellWarps * rtf::kWarp;
  return rtf::first_error(
      [&] { return rtf::device_facts(&facts); }, [&] { return staging.send(on); },
      [&] { return cells ? rtf::launch(rtf::read_cells, cells, threads, 0, on, all, work) : cudaSuccess; },
      [&] { return rtf::run_lattices(all, work, facts, on); },
      [&] {
        return rtf::launch(rtf::lattice_losses, rtf::blocks_for(all.batch, 128), 128, 0, on, all.batch, work, loss);
      },
      [&] { return cells ? rtf::launch(rtf::write_cells, cells, threads, 0, on, all, work, gradient) : cudaSuccess; });
}
}
