// The MDLSTM on a GPU: kernels and their launches. The division into blocks is in cuda_layout.h and cuda_plan.h, the
// loop over the diagonals in cuda_team.h, the cells in cuda_passes.h.
#include "cuda_passes.h"
#include "cuda_plan.h"
#include "mdlstm_cuda.h"

namespace rtf {
namespace mdlstm {
namespace {

template <class Pass, class Io>
__global__ void __launch_bounds__(kMaxThreads, 1) on_chip_kernel(const __grid_constant__ Call<Io> call) {
  run_on_chip<Pass>(call);
}

template <class Pass, class Io>
__global__ void __launch_bounds__(kMaxThreads, 1) diagonal_kernel(const __grid_constant__ Call<Io> call, int diagonal) {
  run_one_diagonal<Pass>(call, diagonal);
}

template <class Pass, class Io>
__global__ void __launch_bounds__(kMaxThreads, 1) pack_kernel(const __grid_constant__ Call<Io> call) {
  pack_all<Pass>(call);
}

template <class T>
__global__ void clear_padding_kernel(const __grid_constant__ Call<RtfMdLstmCudaForward> call) {
  clear_padding<T>(call);
}

template <class T>
__global__ void collect_before_kernel(const __grid_constant__ Call<RtfMdLstmCudaBackward> call) {
  collect_before<T>(call);
}

// Host integers are passed as kernel arguments, so that no copy has to be awaited and their memory may be freed at
// once.
struct Chunk {
  static constexpr int kSize = 960;
  int values[kSize];
};

__global__ void upload_kernel(const __grid_constant__ Chunk chunk, int count, int* to) {
  for (int i = thread(); i < count; i += threads()) to[i] = chunk.values[i];
}

cudaError_t upload(const std::vector<int>& values, int* to, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  for (size_t start = 0; start < values.size() && error == cudaSuccess; start += Chunk::kSize) {
    Chunk chunk;
    const int count = static_cast<int>(std::min<size_t>(Chunk::kSize, values.size() - start));
    std::copy_n(values.begin() + start, count, chunk.values);
    error = launch(upload_kernel, 1, 256, 0, stream, chunk, count, to + start);
  }
  return error;
}

// The kernels of a pass on arrays of one type. beside: what it does with pixels that no recurrence needs.
template <class Pass, class Io>
struct Runner {
  void (*beside)(Call<Io>);
  Call<Io> call;
  const RtfMdLstmCudaPlan& plan;
  const Grouping& grouping;
  cudaStream_t stream;

  cudaError_t run() const {
    const WorkspaceLayout layout = workspace_layout<Pass>(call.sizes);
    cudaError_t error = cudaMemsetAsync(call.workspace, 0, layout.zeroed, stream);
    if (error != cudaSuccess) return error;
    const Tables tables(call.sizes, reinterpret_cast<const int*>(call.workspace + layout.tables));
    error = upload(table, const_cast<int*>(reinterpret_cast<const int*>(tables.images)), stream);
    if (error != cudaSuccess) return error;
    const int64_t pixels = int64_t(call.sizes.n_directions) * call.sizes.batch * call.sizes.rows * call.sizes.columns;
    error = launch(beside, static_cast<unsigned>(std::min<int64_t>((pixels + 7) / 8, 4096)), 256, 0, stream, call);
    if (error != cudaSuccess) return error;
    return plan.per_diagonal ? run_diagonals() : run_at_once();
  }

  cudaError_t run_at_once() const {
    const auto kernel = on_chip_kernel<Pass, Io>;
    const unsigned blocks = call.sizes.blocks();
    if (plan.slices == 1) return launch(kernel, blocks, plan.threads, plan.shared_bytes, stream, call);
    return launch_cooperative(kernel, blocks, plan.threads, plan.shared_bytes, stream, call);
  }

  cudaError_t run_diagonals() const {
    const unsigned blocks = call.sizes.blocks();
    cudaError_t error = launch(pack_kernel<Pass, Io>, blocks, plan.threads, plan.shared_bytes, stream, call);
    const int end = static_cast<int>(grouping.diagonals);
    for (int step = 0; step < end && error == cudaSuccess; ++step)
      error = launch(diagonal_kernel<Pass, Io>, blocks, plan.threads, plan.shared_bytes, stream, call,
                     Pass::kBackwards ? end - 1 - step : step);
    return error;
  }

  std::vector<int> table;
};

constexpr const char* kNoPlan = "MDLSTM: the plan is not for these sizes";

const char* check(const RtfMdLstmShape& shape, int64_t n_directions) {
  if (n_directions < 1 || n_directions > RTF_MDLSTM_CUDA_DIRECTIONS)
    return "MDLSTM: a call on a GPU takes 1 to 4 directions";
  if (shape.units < 1) return "MDLSTM: at least one unit is needed";
  constexpr int64_t kMost = int64_t(1) << 31;
  if (shape.batch * shape.rows * shape.columns >= kMost || shape.units * shape.units * 2 * kGates >= kMost)
    return "MDLSTM: more pixels or weights than a GPU kernel can count";
  return nullptr;
}

const char* text_of(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

template <class Pass, class Io>
const char* run(const RtfMdLstmShape& shape, int64_t n_directions, const Io* directions, const RtfMdLstmCudaPlan& plan,
                void* workspace, void* stream, void (*beside)(Call<Io>)) {
  if (const char* error = check(shape, n_directions)) return error;
  if (shape.batch * shape.rows * shape.columns == 0) return nullptr;
  if (plan.groups < 1 || plan.units_of_slice < 1 || plan.units_of_slice % kTileUnits<Pass> != 0) return kNoPlan;
  const Grouping grouping(shape, plan.groups);
  Call<Io> call{};
  call.sizes = sizes_of(shape, n_directions, grouping, plan.units_of_slice, plan.threads, plan.per_diagonal);
  if (shared_layout<Pass>(call.sizes).total != plan.shared_bytes ||
      workspace_layout<Pass>(call.sizes).total != plan.workspace_bytes)
    return kNoPlan;
  call.workspace = static_cast<char*>(workspace);
  std::copy_n(directions, n_directions, call.io);
  const Runner<Pass, Io> runner{
      beside, call, plan, grouping, static_cast<cudaStream_t>(stream), table_of(shape, grouping)};
  return text_of(runner.run());
}

// Calls function(a number of the type) for the type of the arrays. RTF_FLOAT_ONLY: for a build in a third of the time.
template <class Function>
const char* with_type(int type, const Function& function) {
  if (type == RTF_MDLSTM_FLOAT) return function(float{});
#if !RTF_FLOAT_ONLY
  if (type == RTF_MDLSTM_BFLOAT16) return function(__nv_bfloat16{});
  if (type == RTF_MDLSTM_HALF) return function(__half{});
#endif
  return "MDLSTM: the type of the arrays is none of RtfMdLstmType";
}

}  // namespace
}  // namespace mdlstm
}  // namespace rtf

extern "C" {

const char* rtf_mdlstm_cuda_plan(const RtfMdLstmShape* shape, int64_t n_directions, int backward,
                                 const RtfMdLstmCudaLimits* limits, RtfMdLstmCudaPlan* plan) {
  using namespace rtf;
  using namespace rtf::mdlstm;
  if (const char* error = check(*shape, n_directions)) return error;
  RtfMdLstmCudaLimits all{};
  if (limits == nullptr) {
    DeviceFacts facts{};
    if (const char* error = text_of(device_facts(&facts))) return error;
    all = RtfMdLstmCudaLimits{facts.multiprocessors, facts.shared_per_block};
    limits = &all;
  }
  if (shape->batch == 0)
    *plan = RtfMdLstmCudaPlan{};
  else
    *plan = (backward ? best_plan<BackwardSizes> : best_plan<ForwardSizes>)(*shape, n_directions, *limits);
  return nullptr;
}

const char* rtf_mdlstm_forward_cuda(const RtfMdLstmShape* shape, int64_t n_directions,
                                    const RtfMdLstmCudaForward* directions, int type, const RtfMdLstmCudaPlan* plan,
                                    void* workspace, void* stream) {
  using namespace rtf::mdlstm;
  return with_type(type, [&](auto number) {
    using T = decltype(number);
    return run<ForwardPass<T>>(*shape, n_directions, directions, *plan, workspace, stream, clear_padding_kernel<T>);
  });
}

const char* rtf_mdlstm_backward_cuda(const RtfMdLstmShape* shape, int64_t n_directions,
                                     const RtfMdLstmCudaBackward* directions, int type, const RtfMdLstmCudaPlan* plan,
                                     void* workspace, void* stream) {
  using namespace rtf::mdlstm;
  return with_type(type, [&](auto number) {
    using T = decltype(number);
    return run<BackwardPass<T>>(*shape, n_directions, directions, *plan, workspace, stream, collect_before_kernel<T>);
  });
}
}
