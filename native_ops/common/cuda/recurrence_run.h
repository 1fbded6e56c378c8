// Host side: launches the kernels of a recurrence.
#pragma once

#include <numeric>
#include <vector>

#include "recurrence_plan.h"

namespace rtf {
namespace recurrence {

// An array [T, B, width] whose frames after the end of a sequence have to be 0.
template <class Element>
struct Padded {
  Element* data;
  int64_t width;
};

template <class R>
struct Call {
  using Element = typename R::Math::Element;
  RtfSequences shape;
  typename R::Arrays arrays;
  WeightView<Element> weights[kMaxStages];
  std::vector<Padded<Element>> padded;
  unsigned char* workspace;
  cudaStream_t stream;
};

template <class R>
Call<R> call_of(const RtfSequences& shape, void* workspace, void* stream) {
  Call<R> call{};
  call.shape = shape;
  call.workspace = static_cast<unsigned char*>(workspace);
  call.stream = static_cast<cudaStream_t>(stream);
  return call;
}

// All sequences of a call, longest first.
inline std::vector<int2> sorted_sequences(const RtfSequences& shape) {
  std::vector<int2> all(static_cast<size_t>(shape.batch));
  for (size_t b = 0; b < all.size(); ++b)
    all[b] = make_int2(static_cast<int>(b), shape.lengths ? shape.lengths[b] : static_cast<int>(shape.frames));
  std::stable_sort(all.begin(), all.end(), [](int2 a, int2 b) { return a.y > b.y; });
  return all;
}

// The first error of several calls.
class Errors {
 public:
  void operator()(cudaError_t error) {
    if (first_ == cudaSuccess) first_ = error;
  }
  bool none() const { return first_ == cudaSuccess; }
  const char* text() const { return none() ? nullptr : cudaGetErrorString(first_); }

 private:
  cudaError_t first_ = cudaSuccess;
};

template <class R>
Buffers buffers_of(const Plan& plan, unsigned char* workspace) {
  Buffers buffers{};
  buffers.counters = reinterpret_cast<unsigned*>(workspace);
  buffers.state = reinterpret_cast<float*>(workspace + plan.state_at);
  for (int stage = 0; stage < R::kStages; ++stage) {
    buffers.x[stage] = workspace + plan.x_at[stage];
    buffers.packed[stage] = reinterpret_cast<int4*>(workspace + plan.packed_at[stage]);
  }
  return buffers;
}

template <class R, class Stage>
cudaError_t pack(const Call<R>& call, const Plan& plan, const Buffers& buffers, int stage) {
  const int vectors = plan.layout.chunks[stage] * Stage::kTiles * kFragmentVectors;
  const dim3 grid(static_cast<unsigned>(plan.layout.tiles), static_cast<unsigned>((vectors + kThreads - 1) / kThreads));
  return launch(pack_weights<typename R::Math, R::kUnits, Stage::kTiles>, grid, kThreads, 0, call.stream,
                call.weights[stage], plan.layout.chunks[stage], buffers.packed[stage]);
}

template <class R>
cudaError_t pad(const Call<R>& call, const RowTable& table) {
  const int64_t missing = call.shape.frames - table.rows[table.count - 1].y;
  const dim3 grid(static_cast<unsigned>(table.count), static_cast<unsigned>(std::min<int64_t>(missing, 128)));
  for (const auto& array : call.padded) {
    const cudaError_t error = missing == 0
                                  ? cudaSuccess
                                  : launch(zero_padding<typename R::Math::Element>, grid, kThreads, 0, call.stream,
                                           array.data, array.width, call.shape.frames, call.shape.batch, table);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// With as many blocks as are resident at once.
template <class R>
cudaError_t launch_streaming(const Call<R>& call, const Plan& plan, const Buffers& buffers, const RowTable& table) {
  DeviceFacts facts;
  int most = 0;
  cudaError_t error = device_facts(&facts);
  if (error == cudaSuccess)
    error = blocks_per_multiprocessor(&most, all_steps_streaming<R>, kThreads, plan.shared_bytes);
  if (error != cudaSuccess) return error;
  const int blocks = std::min(plan.layout.tiles, std::min(most, kStreamingBlocks) * facts.multiprocessors);
  return launch_cooperative(all_steps_streaming<R>, static_cast<unsigned>(blocks), kThreads, plan.shared_bytes,
                            call.stream, call.arrays, plan.layout, buffers, table);
}

template <class R>
cudaError_t launch_steps(const Call<R>& call, const Plan& plan, const Buffers& buffers, const RowTable& table) {
  if constexpr (R::kStreams)
    if (!plan.on_chip) return launch_streaming(call, plan, buffers, table);
  const unsigned blocks = static_cast<unsigned>(plan.layout.groups) * plan.layout.tiles;
  return launch_cooperative(all_steps<R>, blocks, kThreads, plan.shared_bytes, call.stream, call.arrays, plan.layout,
                            buffers, table);
}

// The sequences of one table, with weights that are packed already.
template <class R>
void run_rows(const Call<R>& call, const Plan& plan, const Buffers& buffers, const RowTable& table, Errors* errors) {
  (*errors)(cudaMemsetAsync(call.workspace, 0, static_cast<size_t>(plan.cleared), call.stream));
  const dim3 starts(static_cast<unsigned>(table.count),
                    static_cast<unsigned>((plan.layout.units + kThreads - 1) / kThreads));
  (*errors)(launch(start_sequences<R>, starts, kThreads, 0, call.stream, call.arrays, plan.layout, buffers, table));
  (*errors)(pad(call, table));
  if (errors->none() && table.rows[0].y > 0) (*errors)(launch_steps(call, plan, buffers, table));
}

template <class R>
const char* run(const Call<R>& call, const Plan& plan) {
  const Buffers buffers = buffers_of<R>(plan, call.workspace);
  Errors errors;
  errors(pack<R, typename R::First>(call, plan, buffers, 0));
  if constexpr (R::kStages == 2) errors(pack<R, typename R::Second>(call, plan, buffers, 1));
  const std::vector<int2> all = sorted_sequences(call.shape);
  for (size_t done = 0; done < all.size() && errors.none(); done += kMaxRows) {
    RowTable table{};
    table.count = static_cast<int>(std::min<size_t>(kMaxRows, all.size() - done));
    std::copy(all.begin() + static_cast<int64_t>(done), all.begin() + static_cast<int64_t>(done) + table.count,
              table.rows);
    run_rows(call, plan, buffers, table, &errors);
  }
  return errors.text();
}

// function(math) for the number format of a call, or `otherwise`.
template <class Result, class Function>
Result with_numbers(RtfNumbers numbers, Result otherwise, const Function& function) {
  switch (numbers) {
    case RTF_FLOAT: return function(FloatSplit());
    case RTF_FLOAT_TF32: return function(FloatTf32());
    case RTF_BFLOAT16: return function(Bfloat16());
    case RTF_FLOAT16: return function(Float16());
  }
  return otherwise;
}

// function(device properties) for a valid shape; returns its result, or the text of an error.
template <class Function>
const char* with_device(const RtfSequences& shape, const Function& function) {
  const char* wrong = check(shape);
  if (wrong != nullptr || shape.batch == 0) return wrong;
  DeviceFacts facts;
  const cudaError_t error = device_facts(&facts);
  return error == cudaSuccess ? function(facts) : cudaGetErrorString(error);
}

// function(math, device properties) for a valid call; returns its result, or the text of an error.
template <class Function>
const char* checked_call(const RtfSequences& shape, RtfNumbers numbers, const Function& function) {
  return with_device(shape, [&](const DeviceFacts& facts) {
    const char* unknown = "these numbers are none of RtfNumbers";
    return with_numbers(numbers, unknown, [&](auto math) { return function(math, facts); });
  });
}

}  // namespace recurrence
}  // namespace rtf
