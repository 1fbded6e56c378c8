// Runs the LSTM (TF32) or, with -DRTF_GRU=1, the GRU (bfloat16) on arrays of exactly their size, for the sanitizers to
// watch. Not by their C interfaces, which would compile all kinds of numbers. With an argument: the workspace is too
// small.
#include <stdlib.h>

#include <memory>

#include "common/cuda/recurrence_run.h"
#include "gru/gru_cells.h"
#include "lstm/lstm_cells.h"

using namespace rtf;
using namespace rtf::recurrence;

namespace {

// Memory of the emulated GPU, aligned as there; it goes with this.
class Memory {
 public:
  void* bytes(int64_t size) {
    void* memory = nullptr;
    cudaMalloc(&memory, static_cast<size_t>(size));
    all_.emplace_back(memory, free);
    return memory;
  }

  template <class E>
  E* numbers(int64_t count) {
    E* x = static_cast<E*>(bytes(count * static_cast<int64_t>(sizeof(E))));
    for (int64_t i = 0; i < count; ++i) put(&x[i], 0.1f);
    return x;
  }

 private:
  std::vector<std::unique_ptr<void, void (*)(void*)>> all_;
};

template <class R>
const char* run_one(Call<R>* call, Memory* memory, int64_t missing) {
  DeviceFacts facts;
  device_facts(&facts);
  const Plan plan = make_plan<R>(call->shape, facts);
  call->workspace = static_cast<unsigned char*>(memory->bytes(plan.bytes - missing));
  return run(*call, plan);
}

#if !RTF_GRU
template <class R>
const char* run_pass(const RtfSequences& shape, int64_t missing) {
  using E = typename R::Math::Element;
  Memory memory;
  const int64_t B = shape.batch, H = shape.units, all = shape.frames * B * H;
  const auto of = [&](int64_t count) { return memory.numbers<E>(count); };
  Call<R> call = call_of<R>(shape, nullptr, rtf::emulation::stream());
  const int units = static_cast<int>(H);
  if constexpr (R::kBackward) {
    call.arrays = {of(B * H), of(all), of(4 * all), of(all), of(B * H), of(B * H), of(4 * all), of(B * H), of(B * H)};
    call.weights[0] = {of(4 * H * H), 4 * H, 0, 1, units, 1, 4 * units};
    call.padded = {{call.arrays.dz, 4 * H}};
  } else {
    call.arrays = {of(4 * all), of(B * H), of(B * H), of(all), of(all), of(4 * all), of(B * H), of(B * H)};
    call.weights[0] = {of(4 * H * H), 1, H, 4 * H, units, 4, units};
    call.padded = {{call.arrays.h, H}, {call.arrays.c, H}, {call.arrays.gates, 4 * H}};
  }
  return run_one(&call, &memory, missing);
}

using Forward = LstmForward<FloatTf32, 16>;
using Backward = LstmBackward<FloatTf32>;
#else
template <class R>
const char* run_pass(const RtfSequences& shape, int64_t missing) {
  using E = typename R::Math::Element;
  Memory memory;
  const int64_t B = shape.batch, H = shape.units, all = shape.frames * B * H;
  const auto of = [&](int64_t count) { return memory.numbers<E>(count); };
  Call<R> call = call_of<R>(shape, nullptr, rtf::emulation::stream());
  const int units = static_cast<int>(H);
  if constexpr (R::kBackward) {
    call.arrays = {of(B * H), of(all), of(3 * all), of(all), of(B * H), of(3 * all), of(all), of(B * H)};
    call.weights[0] = {of(2 * H * H), 2 * H, 0, 1, units, 1, 2 * units};
    call.weights[1] = {of(H * H), H, 0, 1, units, 1, units};
    call.padded = {{call.arrays.dz, 3 * H}, {call.arrays.reset_h, H}};
  } else {
    call.arrays = {of(3 * all), of(B * H), of(all), of(3 * all), of(B * H)};
    call.weights[0] = {of(2 * H * H), 1, H, 2 * H, units, 2, units};
    call.weights[1] = {of(H * H), 1, 0, H, units, 1, units};
    call.padded = {{call.arrays.h, H}, {call.arrays.gates, 3 * H}};
  }
  return run_one(&call, &memory, missing);
}

using Forward = GruForward<Bfloat16>;
using Backward = GruBackward<Bfloat16>;
#endif

}  // namespace

int main(int argc, char**) {
  const int32_t lengths[] = {2, 0, 3, 1, 3, 1, 2, 3, 1, 2, 3, 3, 1, 2, 3, 1, 1, 2};
  for (const char* multiprocessors : {"1", "5"})
    for (int64_t units : {1, 33, 40}) {
      setenv("RTF_EMULATION_SMS", multiprocessors, 1);
      const RtfSequences shape{3, 18, units, lengths, units % 2 == 0};
      const char* errors[] = {run_pass<Forward>(shape, argc > 1 ? 256 : 0), run_pass<Backward>(shape, 0)};
      for (const char* error : errors)
        if (error != nullptr) return puts(error), 1;
    }
  puts("good");
}
