// The pointwise part of the LSTM on the GPU, for common/cuda/recurrence_block.h.
#pragma once

#include "../common/cuda/recurrence_block.h"

namespace rtf {
namespace recurrence {

// kUnits_: units per block, 4 rows of weights each.
template <class Math_, int kUnits_>
struct LstmForward {
  using Math = Math_;
  using Element = typename Math::Element;
  static constexpr int kUnits = kUnits_, kStages = 1;
  static constexpr bool kBackward = false, kStreams = kUnits == 16;  // narrow tiles only if all stay on the chip
  static int64_t product_length(int, int64_t units) { return units; }

  struct Arrays {
    const Element *z, *c0, *h0;
    Element *h, *c, *gates, *c_last, *h_last;
  };

  static __device__ __forceinline__ float start(const Arrays& arrays, const Place& at, int length, Element* x) {
    const Element c = arrays.c0[at.state()], h = arrays.h0[at.state()];
    x[at.unit] = h;
    if (length == 0) {
      arrays.c_last[at.state()] = c;
      arrays.h_last[at.state()] = h;
    }
    return value_of(c);
  }

  struct First {
    static constexpr int kRows = 4, kTiles = kUnits * kRows / 16, kHeld = 16 / kTiles;
    struct Input {
      float z[4];
    };
    struct Output {
      float gates[4], c, h;  // j, i, f, o
    };

    static __device__ __forceinline__ void load(const Arrays& arrays, const Place& at, Input* input) {
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) input->z[gate] = value_of(arrays.z[at.gate(4, gate)]);
    }

    static __device__ __forceinline__ Output compute(const float (&sums)[4], const Input& input, const Place&,
                                                     float* c) {
      Output output;
      output.gates[0] = tanhf(input.z[0] + sums[0]);
#pragma unroll
      for (int gate = 1; gate < 4; ++gate) output.gates[gate] = sigmoid(input.z[gate] + sums[gate]);
      output.c = *c = output.gates[2] * *c + output.gates[1] * output.gates[0];
      output.h = output.gates[3] * tanhf(output.c);
      return output;
    }

    static __device__ __forceinline__ void send(const Output& output, int, int unit, Element* const* x) {
      put(&x[0][unit], output.h);
    }

    static __device__ __forceinline__ void store(const Arrays& arrays, const Output& output, const Place& at) {
      put(&arrays.h[at.at(at.frame)], output.h);
      put(&arrays.c[at.at(at.frame)], output.c);
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) put(&arrays.gates[at.gate(4, gate)], output.gates[gate]);
      if (!at.last) return;
      put(&arrays.c_last[at.state()], output.c);
      put(&arrays.h_last[at.state()], output.h);
    }
  };
  using Second = NoStage;
  using Finish = NoStage;
};

// The state is the gradient of c; the product is dz R^T of the following step in time.
template <class Math_>
struct LstmBackward {
  using Math = Math_;
  using Element = typename Math::Element;
  static constexpr int kUnits = 16, kStages = 1;
  static constexpr bool kBackward = true, kStreams = true;
  static int64_t product_length(int, int64_t units) { return 4 * units; }

  struct Arrays {
    const Element *c0, *c, *gates, *dh, *dc_last, *dh_last;
    Element *dz, *dc0, *dh0;
  };

  static __device__ __forceinline__ float start(const Arrays& arrays, const Place& at, int length, Element*) {
    if (length == 0) {
      arrays.dc0[at.state()] = arrays.dc_last[at.state()];
      arrays.dh0[at.state()] = arrays.dh_last[at.state()];
    }
    return value_of(arrays.dc_last[at.state()]);
  }

  struct First {
    static constexpr int kRows = 1, kTiles = 1, kHeld = 12;  // 16 would not leave enough registers
    struct Input {
      float gates[4], c, c_before, dh, dh_last;
    };
    struct Output {
      float dz[4];
    };

    static __device__ __forceinline__ void load(const Arrays& arrays, const Place& at, Input* input) {
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) input->gates[gate] = value_of(arrays.gates[at.gate(4, gate)]);
      input->c = value_of(arrays.c[at.at(at.frame)]);
      input->c_before = value_of(at.first ? arrays.c0[at.state()] : arrays.c[at.at(at.before)]);
      input->dh = value_of(arrays.dh[at.at(at.frame)]);
      input->dh_last = at.last ? value_of(arrays.dh_last[at.state()]) : 0.0f;
    }

    static __device__ __forceinline__ Output compute(const float (&sums)[1], const Input& input, const Place& at,
                                                     float* dc_state) {
      const float j = input.gates[0], i = input.gates[1], f = input.gates[2], o = input.gates[3],
                  tanh_c = tanhf(input.c);
      const float dh = input.dh + (at.last ? input.dh_last : sums[0]);
      const float dc = *dc_state + dh * o * (1 - tanh_c * tanh_c);
      Output output;
      output.dz[0] = dc * i * (1 - j * j);
      output.dz[1] = dc * j * i * (1 - i);
      output.dz[2] = dc * input.c_before * f * (1 - f);
      output.dz[3] = dh * tanh_c * o * (1 - o);
      *dc_state = dc * f;
      return output;
    }

    static __device__ __forceinline__ void send(const Output& output, int units, int unit, Element* const* x) {
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) put(&x[0][gate * units + unit], output.dz[gate]);
    }

    static __device__ __forceinline__ void store(const Arrays& arrays, const Output& output, const Place& at) {
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) put(&arrays.dz[at.gate(4, gate)], output.dz[gate]);
    }
  };
  using Second = NoStage;

  struct Finish : NoStage {
    static constexpr int kTiles = First::kTiles;
    struct Output {
      float dh, dc;
    };
    static __device__ __forceinline__ Output compute(const float (&sums)[1], const Input&, const Place&, float* dc) {
      return {sums[0], *dc};
    }
    static __device__ __forceinline__ void send(const Output&, int, int, Element* const*) {}
    static __device__ __forceinline__ void store(const Arrays& arrays, const Output& output, const Place& at) {
      put(&arrays.dh0[at.state()], output.dh);
      put(&arrays.dc0[at.state()], output.dc);
    }
    static __device__ __forceinline__ void load(const Arrays&, const Place&, Input*) {}
  };
};

}  // namespace recurrence
}  // namespace rtf
