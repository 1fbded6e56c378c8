// The pointwise part of the sLSTM on the GPU, for common/cuda/recurrence_block.h. Formulas, and what the excess is:
// slstm_cpu.cc.
//
// A block keeps one number of a state between steps, here c or its gradient. n and m, or what the backward pass has in
// their place, go through the memory of the results, where the same thread reads them that wrote them.
#pragma once

#include "../common/cuda/recurrence_block.h"
#include "slstm.h"

namespace rtf {
namespace recurrence {

constexpr float kTiny = 1e-30f;

// NaN passes, unlike through fmaxf.
__device__ __forceinline__ float at_least(float x, float least) { return x < least ? least : x; }

__device__ __forceinline__ float log_sigmoid(float x) { return (x < 0 ? x : 0.0f) - log1pf(expf(-fabsf(x))); }

// What both passes compute from the gates and the state before a step.
struct SLstmGates {
  float kept, m, i, f, z, o;

  __device__ __forceinline__ SLstmGates(const float (&gates)[4], float m_before, bool exp_forget)
      : kept((exp_forget ? gates[1] : log_sigmoid(gates[1])) + m_before),
        m(at_least(kept, gates[0])),
        i(expf(gates[0] - m)),
        f(expf(kept - m)),
        z(tanhf(gates[2])),
        o(sigmoid(gates[3])) {}
};

// kUnits_: units per block, 4 rows of weights each.
template <class Math_, int kUnits_>
struct SLstmForward {
  using Math = Math_;
  static constexpr int kUnits = kUnits_, kStages = 1;
  static constexpr bool kBackward = false, kStreams = kUnits == 16;  // narrow tiles only if all stay on the chip
  static int64_t product_length(int, int64_t units) { return units; }

  struct Arrays {
    const float* z;
    RtfSLstmConstState initial;
    RtfSLstmState states, last;
    float* gates;
    bool exp_forget;
  };

  static __device__ __forceinline__ float start(const Arrays& arrays, const Place& at, int length, float* x) {
    const float c = arrays.initial.c[at.state()], h = arrays.initial.h[at.state()];
    x[at.unit] = h;
    if (length == 0) {
      arrays.last.c[at.state()] = c;
      arrays.last.n[at.state()] = arrays.initial.n[at.state()];
      arrays.last.m[at.state()] = arrays.initial.m[at.state()];
      arrays.last.h[at.state()] = h;
    }
    return c;
  }

  struct First {
    // Heads are small, so that what registers do not hold fits into shared memory.
    static constexpr int kRows = 4, kTiles = kUnits * kRows / 16, kHeld = kUnits == 8 ? 4 : 0;
    struct Input {
      float z[4], n, m;
      bool exp_forget;
    };
    struct Output {
      float gates[4], c, n, m, h;
    };

    static __device__ __forceinline__ void load(const Arrays& arrays, const Place& at, Input* input) {
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) input->z[gate] = arrays.z[at.gate(4, gate)];
      input->n = at.first ? arrays.initial.n[at.state()] : arrays.states.n[at.at(at.before)];
      input->m = at.first ? arrays.initial.m[at.state()] : arrays.states.m[at.at(at.before)];
      input->exp_forget = arrays.exp_forget;
    }

    static __device__ __forceinline__ Output compute(const float (&sums)[4], const Input& input, const Place&,
                                                     float* c) {
      Output output;
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) output.gates[gate] = input.z[gate] + sums[gate];
      const SLstmGates v(output.gates, input.m, input.exp_forget);
      output.m = v.m;
      output.c = *c = v.f * *c + v.i * v.z;
      output.n = v.f * input.n + v.i;
      output.h = v.o * output.c / at_least(output.n, kTiny);
      return output;
    }

    static __device__ __forceinline__ void send(const Output& output, int, int unit, float* const* x) {
      x[0][unit] = output.h;
    }

    static __device__ __forceinline__ void store(const Arrays& arrays, const Output& output, const Place& at) {
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) arrays.gates[at.gate(4, gate)] = output.gates[gate];
      put_all(arrays.states, output, at.at(at.frame));
      if (at.last) put_all(arrays.last, output, at.state());
    }

    static __device__ __forceinline__ void put_all(const RtfSLstmState& to, const Output& output, int64_t at) {
      to.c[at] = output.c;
      to.n[at] = output.n;
      to.m[at] = output.m;
      to.h[at] = output.h;
    }
  };
  using Second = NoStage;
  using Finish = NoStage;
};

// The state is the gradient of c; that of n and the excess are in dinitial meanwhile. The product is dz R^T of the
// following step in time.
template <class Math_>
struct SLstmBackward {
  using Math = Math_;
  static constexpr int kUnits = 16, kStages = 1;
  static constexpr bool kBackward = true, kStreams = true;
  static int64_t product_length(int, int64_t units) { return 4 * units; }

  struct Arrays {
    RtfSLstmConstState initial, states;  // h is not read
    const float *gates, *dh;
    RtfSLstmConstState dlast;
    float* dz;
    RtfSLstmState dinitial;
    bool exp_forget;
  };

  static __device__ __forceinline__ float start(const Arrays& arrays, const Place& at, int length, float*) {
    const int64_t state = at.state(), end = at.at(at.frame + (length - 1) * (at.frame - at.before));
    const float dc = arrays.dlast.c[state], dn = arrays.dlast.n[state], dm = arrays.dlast.m[state];
    arrays.dinitial.n[state] = dn;
    if (length == 0) {
      arrays.dinitial.c[state] = dc;
      arrays.dinitial.m[state] = dm;
      arrays.dinitial.h[state] = arrays.dlast.h[state];
    } else {
      arrays.dinitial.m[state] = dm - arrays.states.c[end] * dc - arrays.states.n[end] * dn;
    }
    return dc;
  }

  struct First {
    static constexpr int kRows = 1, kTiles = 1, kHeld = 8;  // more would not leave enough registers
    struct Input {
      float gates[4], c, n, c_before, n_before, m_before, dh, dh_last, dn, excess;
      bool exp_forget;
    };
    struct Output {
      float dz[4], dn, excess;
    };

    static __device__ __forceinline__ void load(const Arrays& arrays, const Place& at, Input* input) {
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) input->gates[gate] = arrays.gates[at.gate(4, gate)];
      const int64_t now = at.at(at.frame), before = at.first ? at.state() : at.at(at.before);
      input->c = arrays.states.c[now];
      input->n = arrays.states.n[now];
      input->c_before = (at.first ? arrays.initial.c : arrays.states.c)[before];
      input->n_before = (at.first ? arrays.initial.n : arrays.states.n)[before];
      input->m_before = (at.first ? arrays.initial.m : arrays.states.m)[before];
      input->dh = arrays.dh[now];
      input->dh_last = at.last ? arrays.dlast.h[at.state()] : 0.0f;
      input->dn = arrays.dinitial.n[at.state()];
      input->excess = arrays.dinitial.m[at.state()];
      input->exp_forget = arrays.exp_forget;
    }

    static __device__ __forceinline__ Output compute(const float (&sums)[1], const Input& input, const Place& at,
                                                     float* dc_state) {
      const SLstmGates v(input.gates, input.m_before, input.exp_forget);
      const float dh = input.dh + (at.last ? input.dh_last : sums[0]);
      const float inverse = 1.0f / at_least(input.n, kTiny), mean = input.c * inverse, dc_by_h = dh * v.o * inverse;
      const float dc = *dc_state + dc_by_h, dn = input.dn - dc_by_h * mean;
      const float passed = v.kept >= input.gates[0] ? input.excess : 0.0f;
      const float dkept = v.f * (dc * input.c_before + dn * input.n_before) + passed;
      Output output;
      output.dz[0] = v.i * (dc * v.z + dn) + (input.excess - passed);
      output.dz[1] = input.exp_forget ? dkept : dkept * sigmoid(-input.gates[1]);
      output.dz[2] = dc * v.i * (1 - v.z * v.z);
      output.dz[3] = dh * mean * v.o * (1 - v.o);
      output.dn = dn * v.f;
      output.excess = passed;
      *dc_state = dc * v.f;
      return output;
    }

    static __device__ __forceinline__ void send(const Output& output, int units, int unit, float* const* x) {
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) x[0][gate * units + unit] = output.dz[gate];
    }

    static __device__ __forceinline__ void store(const Arrays& arrays, const Output& output, const Place& at) {
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) arrays.dz[at.gate(4, gate)] = output.dz[gate];
      arrays.dinitial.n[at.state()] = output.dn;
      arrays.dinitial.m[at.state()] = output.excess;
    }
  };
  using Second = NoStage;

  struct Finish : NoStage {
    static constexpr int kTiles = First::kTiles;
    struct Input {
      float c, n, dn, excess;
    };
    struct Output {
      float dh, dc, dm;
    };

    static __device__ __forceinline__ void load(const Arrays& arrays, const Place& at, Input* input) {
      input->c = arrays.initial.c[at.state()];
      input->n = arrays.initial.n[at.state()];
      input->dn = arrays.dinitial.n[at.state()];
      input->excess = arrays.dinitial.m[at.state()];
    }
    static __device__ __forceinline__ Output compute(const float (&sums)[1], const Input& input, const Place&,
                                                     float* dc) {
      return {sums[0], *dc, input.excess + input.c * *dc + input.n * input.dn};
    }
    static __device__ __forceinline__ void send(const Output&, int, int, float* const*) {}
    static __device__ __forceinline__ void store(const Arrays& arrays, const Output& output, const Place& at) {
      arrays.dinitial.h[at.state()] = output.dh;
      arrays.dinitial.c[at.state()] = output.dc;
      arrays.dinitial.m[at.state()] = output.dm;
    }
  };
};

}  // namespace recurrence
}  // namespace rtf
