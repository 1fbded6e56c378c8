// The pointwise parts of the GRU on the GPU, for common/cuda/recurrence_block.h. A step has two products, because the
// candidate needs the reset gates of all units: First computes the gates, Second the candidate; backward the other way
// round.
#pragma once

#include "../common/cuda/recurrence_block.h"

namespace rtf {
namespace recurrence {

// The state is h.
template <class Math_>
struct GruForward {
  using Math = Math_;
  using Element = typename Math::Element;
  static constexpr int kUnits = 16, kStages = 2;
  static constexpr bool kBackward = false, kStreams = true;
  static int64_t product_length(int, int64_t units) { return units; }

  struct Arrays {
    const Element *z, *h0;
    Element *h, *gates, *h_last;
  };

  static __device__ __forceinline__ float start(const Arrays& arrays, const Place& at, int length, Element* x) {
    const Element h = arrays.h0[at.state()];
    x[at.unit] = h;
    if (length == 0) arrays.h_last[at.state()] = h;
    return value_of(h);
  }

  struct First {
    static constexpr int kRows = 2, kTiles = 2, kHeld = 4;
    struct Input {
      float z[2];
    };
    struct Output {
      float r, u, reset;
    };

    static __device__ __forceinline__ void load(const Arrays& arrays, const Place& at, Input* input) {
      input->z[0] = value_of(arrays.z[at.gate(3, 0)]);
      input->z[1] = value_of(arrays.z[at.gate(3, 1)]);
    }

    static __device__ __forceinline__ Output compute(const float (&sums)[2], const Input& input, const Place&,
                                                     float* h) {
      const float r = sigmoid(input.z[0] + sums[0]);
      return Output{r, sigmoid(input.z[1] + sums[1]), r * *h};
    }

    static __device__ __forceinline__ void send(const Output& output, int, int unit, Element* const* x) {
      put(&x[1][unit], output.reset);
    }

    static __device__ __forceinline__ void store(const Arrays& arrays, const Output& output, const Place& at) {
      put(&arrays.gates[at.gate(3, 0)], output.r);
      put(&arrays.gates[at.gate(3, 1)], output.u);
    }
  };

  struct Second {
    static constexpr int kRows = 1, kTiles = 1, kHeld = 8;
    struct Input {
      float z, u;
    };
    struct Output {
      float c, h;
    };

    // The update gate was stored by this thread.
    static __device__ __forceinline__ void load(const Arrays& arrays, const Place& at, Input* input) {
      input->z = value_of(arrays.z[at.gate(3, 2)]);
      input->u = value_of(arrays.gates[at.gate(3, 1)]);
    }

    static __device__ __forceinline__ Output compute(const float (&sums)[1], const Input& input, const Place&,
                                                     float* h) {
      const float c = tanhf(input.z + sums[0]);
      *h = c + input.u * (*h - c);
      return Output{c, *h};
    }

    static __device__ __forceinline__ void send(const Output& output, int, int unit, Element* const* x) {
      put(&x[0][unit], output.h);
    }

    static __device__ __forceinline__ void store(const Arrays& arrays, const Output& output, const Place& at) {
      put(&arrays.gates[at.gate(3, 2)], output.c);
      put(&arrays.h[at.at(at.frame)], output.h);
      if (at.last) put(&arrays.h_last[at.state()], output.h);
    }
  };
  using Finish = NoStage;
};

// The state is the part of the gradient of h that does not come from a product.
template <class Math_>
struct GruBackward {
  using Math = Math_;
  using Element = typename Math::Element;
  static constexpr int kUnits = 16, kStages = 2;
  static constexpr bool kBackward = true, kStreams = true;
  static int64_t product_length(int stage, int64_t units) { return stage == 0 ? 2 * units : units; }

  struct Arrays {
    const Element *h0, *h, *gates, *dh, *dh_last;
    Element *dz, *reset_h, *dh0;

    __device__ __forceinline__ float before(const Place& at) const {
      return value_of(at.first ? h0[at.state()] : h[at.at(at.before)]);
    }
  };

  static __device__ __forceinline__ float start(const Arrays& arrays, const Place& at, int length, Element*) {
    if (length == 0) arrays.dh0[at.state()] = arrays.dh_last[at.state()];
    return value_of(arrays.dh_last[at.state()]);
  }

  struct First {
    static constexpr int kRows = 1, kTiles = 1, kHeld = 8;
    struct Input {
      float u, c, dh, before;
    };
    struct Output {
      float du, dc;
    };

    static __device__ __forceinline__ void load(const Arrays& arrays, const Place& at, Input* input) {
      input->u = value_of(arrays.gates[at.gate(3, 1)]);
      input->c = value_of(arrays.gates[at.gate(3, 2)]);
      input->dh = value_of(arrays.dh[at.at(at.frame)]);
      input->before = arrays.before(at);
    }

    static __device__ __forceinline__ Output compute(const float (&sums)[1], const Input& input, const Place& at,
                                                     float* dh_state) {
      const float u = input.u, c = input.c, dh = input.dh + *dh_state + (at.last ? 0.0f : sums[0]);
      *dh_state = dh * u;
      return Output{dh * (input.before - c) * u * (1 - u), dh * (1 - u) * (1 - c * c)};
    }

    static __device__ __forceinline__ void send(const Output& output, int units, int unit, Element* const* x) {
      put(&x[0][units + unit], output.du);
      put(&x[1][unit], output.dc);
    }

    static __device__ __forceinline__ void store(const Arrays& arrays, const Output& output, const Place& at) {
      put(&arrays.dz[at.gate(3, 1)], output.du);
      put(&arrays.dz[at.gate(3, 2)], output.dc);
    }
  };

  struct Second {
    static constexpr int kRows = 1, kTiles = 1, kHeld = 8;
    struct Input {
      float r, before;
    };
    struct Output {
      float dr, reset;
    };

    static __device__ __forceinline__ void load(const Arrays& arrays, const Place& at, Input* input) {
      input->r = value_of(arrays.gates[at.gate(3, 0)]);
      input->before = arrays.before(at);
    }

    static __device__ __forceinline__ Output compute(const float (&sums)[1], const Input& input, const Place&,
                                                     float* dh_state) {
      const float reset = input.r * input.before;
      *dh_state += sums[0] * input.r;
      return Output{sums[0] * reset * (1 - input.r), reset};
    }

    static __device__ __forceinline__ void send(const Output& output, int, int unit, Element* const* x) {
      put(&x[0][unit], output.dr);
    }

    static __device__ __forceinline__ void store(const Arrays& arrays, const Output& output, const Place& at) {
      put(&arrays.dz[at.gate(3, 0)], output.dr);
      put(&arrays.reset_h[at.at(at.frame)], output.reset);
    }
  };

  struct Finish : NoStage {
    static constexpr int kTiles = First::kTiles;
    struct Output {
      float dh;
    };
    static __device__ __forceinline__ void load(const Arrays&, const Place&, NoStage::Input*) {}
    static __device__ __forceinline__ Output compute(const float (&sums)[1], const NoStage::Input&, const Place&,
                                                     float* dh_state) {
      return Output{*dh_state + sums[0]};
    }
    static __device__ __forceinline__ void send(const Output&, int, int, Element* const*) {}
    static __device__ __forceinline__ void store(const Arrays& arrays, const Output& output, const Place& at) {
      put(&arrays.dh0[at.state()], output.dh);
    }
  };
};

}  // namespace recurrence
}  // namespace rtf
