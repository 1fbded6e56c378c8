// The MDLSTM kernels for CPU. An anti-diagonal of all images of a task is one product with both packed recurrent
// weights (pixel_product.h), then one pass over the gates of each pixel (common/vector.h).
//
// States are kept for two diagonals only, by row. There the pixel above and the one to the left are neighbours: for
// pixel (i, d - i) the product reads the 2H contiguous floats from the slot of row i - 1 on, without gathering.
#include <utility>
#include <vector>

#include "../common/ragged.h"
#include "../common/vector.h"
#include "images.h"
#include "mdlstm.h"
#include "pixel_product.h"

namespace rtf {
namespace {

constexpr int64_t kGates = 5;

PixelWeights forward_weights(int64_t units, bool rounded) { return {2 * units, kGates * units, rounded}; }
PixelWeights backward_weights(int64_t units, bool rounded) { return {kGates * units, 2 * units, rounded}; }

// The recurrent weights of a direction, packed for either pass.
struct PackedWeights {
  float* weights;

  PackedWeights(Arena& arena, int64_t units, bool rounded)
      : weights(arena.take(std::max(forward_weights(units, rounded).size(), backward_weights(units, rounded).size()))) {
  }
};

int64_t n_slots(const std::vector<Image>& images) {
  return images.empty() ? 0 : images.back().slots + images.back().height + 1;
}

int64_t longest(const std::vector<Image>& images) {
  int64_t most = 0;
  for (const Image& image : images) most = std::max(most, image.n_diagonals());
  return most;
}

// States of two diagonals, even and odd ones double-buffered.
struct States {
  std::vector<float> h[2], c[2];

  explicit States(int64_t size) {
    for (int side = 0; side < 2; ++side) h[side].assign(size, 0.0f), c[side].assign(size, 0.0f);
  }
};

template <bool kStable>
struct Forward {
  const RtfMdLstmShape& shape;
  const RtfMdLstmForward& io;
  PixelProduct product;

  // c_before: the states of the pixel above and of the one to the left; next: the pixel to prefetch.
  void cell(int64_t at, int64_t next, const float* c_before, float* h_state, float* c_state) const {
    const int64_t H = shape.units;
    float *gate = io.gates + at * kGates * H, *h_now = io.h + at * H, *c_now = io.c + at * H;
    const float* z_next = io.z + next * kGates * H;
    by_vectors(
        H, [&](int64_t u, auto whole, int n) __attribute__((always_inline)) {
          constexpr bool kWhole = decltype(whole)::value;
          for (int part = 0; part < kGates; ++part) prefetch_to_write(z_next + kGates * u + part * kLanes);
          float* g = gate + u;
          const Vec i = sigmoid(load_n<kWhole>(g, n)), f = sigmoid(load_n<kWhole>(g + H, n));
          const Vec l = sigmoid(load_n<kWhole>(g + 2 * H, n)), o = sigmoid(load_n<kWhole>(g + 3 * H, n));
          const Vec a = tanh(load_n<kWhole>(g + 4 * H, n));
          const Vec up = load_n<kWhole>(c_before + u, n), left = load_n<kWhole>(c_before + H + u, n);
          const Vec kept = kStable ? f * (l * left + (splat(1.0f) - l) * up) : f * left + l * up;
          const Vec state = kept + i * a, out = o * tanh(state);
          store_n<kWhole>(g, i, n);
          store_n<kWhole>(g + H, f, n);
          store_n<kWhole>(g + 2 * H, l, n);
          store_n<kWhole>(g + 3 * H, o, n);
          store_n<kWhole>(g + 4 * H, a, n);
          store_n<kWhole>(c_now + u, state, n);
          store_n<kWhole>(c_state + u, state, n);
          store_n<kWhole>(h_now + u, out, n);
          store_n<kWhole>(h_state + u, out, n);
        });
  }

  void run(const std::vector<Image>& images) {
    const int64_t H = shape.units, width = kGates * H;
    const Direction direction{shape, io.flip_rows != 0, io.flip_columns != 0};
    // Slots that no diagonal has written yet are 0, the state outside the image: a diagonal ends at most one row below
    // the previous one.
    States states(n_slots(images) * H);
    std::vector<const float*> inputs;
    std::vector<float*> outputs;
    for (int64_t d = 0, end = longest(images); d < end; ++d) {
      const float *h_before = states.h[(d + 1) % 2].data(), *c_before = states.c[(d + 1) % 2].data();
      float *h_now = states.h[d % 2].data(), *c_now = states.c[d % 2].data();
      inputs.clear();
      outputs.clear();
      for (const Image& image : images) {
        if (d >= image.n_diagonals()) continue;
        const Diagonal diagonal = image.diagonal(d);
        for (int64_t i = diagonal.first; i <= diagonal.last; ++i) {
          const int64_t at = direction.at(image, i, d - i) * width;
          if (io.gates != io.z) std::copy(io.z + at, io.z + at + width, io.gates + at);
          inputs.push_back(h_before + (image.slots + i) * H);
          outputs.push_back(io.gates + at);
        }
      }
      product.add(inputs, outputs);
      for (const Image& image : images) {
        if (d >= image.n_diagonals()) continue;
        const Diagonal diagonal = image.diagonal(d);
        for (int64_t i = diagonal.first; i <= diagonal.last; ++i) {
          const int64_t slot = (image.slots + i) * H, j = d - i;
          cell(direction.at(image, i, j), direction.at(image, i, std::min(j + 1, image.width - 1)), c_before + slot,
               h_now + slot + H, c_now + slot + H);
        }
      }
    }
    for (const Image& image : images)
      for_padding(shape, image, [&](int64_t first, int64_t last) {
        std::fill(io.h + first * H, io.h + last * H, 0.0f);
        std::fill(io.c + first * H, io.c + last * H, 0.0f);
        std::fill(io.gates + first * width, io.gates + last * width, 0.0f);
      });
  }
};

template <bool kStable>
struct Backward {
  const RtfMdLstmShape& shape;
  const RtfMdLstmBackward& io;
  PixelProduct product;

  // From the gradients of the state of a pixel (dh_state, dc_state) to those of its gate inputs and of the states of
  // the two previous pixels: dc_before has the pixel above, then the one to the left.
  void cell(int64_t at, const float* c_up, const float* c_left, const float* dh_state, const float* dc_state,
            float* dc_before) const {
    const int64_t H = shape.units;
    const float *gate = io.gates + at * kGates * H, *c_now = io.c + at * H, *dh_now = io.dh + at * H;
    float* d_gate = io.dz + at * kGates * H;
    const Vec one = splat(1.0f);
    by_vectors(
        H, [&](int64_t u, auto whole, int n) __attribute__((always_inline)) {
          constexpr bool kWhole = decltype(whole)::value;
          const float* g = gate + u;
          const Vec i = load_n<kWhole>(g, n), f = load_n<kWhole>(g + H, n), l = load_n<kWhole>(g + 2 * H, n);
          const Vec o = load_n<kWhole>(g + 3 * H, n), a = load_n<kWhole>(g + 4 * H, n);
          const Vec up = load_n<kWhole>(c_up + u, n), left = load_n<kWhole>(c_left + u, n);
          const Vec tanh_c = tanh(load_n<kWhole>(c_now + u, n));
          const Vec dh = load_n<kWhole>(dh_state + u, n) + load_n<kWhole>(dh_now + u, n);
          const Vec dc = load_n<kWhole>(dc_state + u, n) + dh * o * (one - tanh_c * tanh_c);
          const Vec df = kStable ? l * left + (one - l) * up : left, dl = kStable ? f * (left - up) : up;
          float* d = d_gate + u;
          store_n<kWhole>(d, dc * a * i * (one - i), n);
          store_n<kWhole>(d + H, dc * df * f * (one - f), n);
          store_n<kWhole>(d + 2 * H, dc * dl * l * (one - l), n);
          store_n<kWhole>(d + 3 * H, dh * tanh_c * o * (one - o), n);
          store_n<kWhole>(d + 4 * H, dc * i * (one - a * a), n);
          float *d_up = dc_before + u, *d_left = dc_before + H + u;
          store_n<kWhole>(d_up, load_n<kWhole>(d_up, n) + dc * (kStable ? f * (one - l) : l), n);
          store_n<kWhole>(d_left, load_n<kWhole>(d_left, n) + dc * (kStable ? f * l : f), n);
        });
  }

  void run(const std::vector<Image>& images) {
    const int64_t H = shape.units, width = kGates * H;
    const Direction direction{shape, io.flip_rows != 0, io.flip_columns != 0};
    States states(n_slots(images) * H);
    const std::vector<float> outside(H, 0.0f);
    std::vector<const float*> inputs;
    std::vector<float*> outputs;
    for (int64_t d = longest(images) - 1; d >= 0; --d) {
      const float *dh_now = states.h[d % 2].data(), *dc_now = states.c[d % 2].data();
      float *dh_before = states.h[(d + 1) % 2].data(), *dc_before = states.c[(d + 1) % 2].data();
      inputs.clear();
      outputs.clear();
      for (const Image& image : images) {
        if (d >= image.n_diagonals()) continue;
        const Diagonal diagonal = image.diagonal(d);
        const int64_t begin = (image.slots + diagonal.first) * H, end = (image.slots + diagonal.last + 2) * H;
        std::fill(dh_before + begin, dh_before + end, 0.0f);
        std::fill(dc_before + begin, dc_before + end, 0.0f);
        for (int64_t i = diagonal.first; i <= diagonal.last; ++i) {
          const int64_t slot = (image.slots + i) * H, j = d - i, at = direction.at(image, i, j);
          const int64_t up = i > 0 ? direction.at(image, i - 1, j) * H : -1;
          const int64_t left = j > 0 ? direction.at(image, i, j - 1) * H : -1;
          const float *h_up = up < 0 ? outside.data() : io.h + up, *h_left = left < 0 ? outside.data() : io.h + left;
          std::copy(h_up, h_up + H, io.before + at * 2 * H);
          std::copy(h_left, h_left + H, io.before + at * 2 * H + H);
          cell(at, up < 0 ? outside.data() : io.c + up, left < 0 ? outside.data() : io.c + left, dh_now + slot + H,
               dc_now + slot + H, dc_before + slot);
          inputs.push_back(io.dz + at * width);
          outputs.push_back(dh_before + slot);
        }
      }
      // Two rows of the result overlap, one for the pixel above and one for the pixel to the left; they are added in
      // order.
      product.add(inputs, outputs);
    }
    for (const Image& image : images)
      for_padding(shape, image, [&](int64_t first, int64_t last) {
        std::fill(io.dz + first * width, io.dz + last * width, 0.0f);
        std::fill(io.before + first * 2 * H, io.before + last * 2 * H, 0.0f);
      });
  }
};

// Packs the weights of all directions, then runs Pass for each direction and share of the images.
template <template <bool> class Pass, typename Io, typename Pack>
void run_all(const RtfMdLstmShape& shape, const PixelWeights& weights, int64_t n_directions, const Io* directions,
             float* scratch, const RtfThreads& threads, const Pack& pack_direction) {
  std::vector<const float*> packed(n_directions);
  const int64_t size = size_of<PackedWeights>(shape.units, weights.rounded);
  run_tasks(threads, n_directions, [&](int64_t k) {
    Arena arena(scratch, k, size);
    float* memory = PackedWeights(arena, shape.units, weights.rounded).weights;
    pack_direction(directions[k].r, memory);
    packed[k] = memory;
  });
  const ImageShares shares(shape, n_directions, threads.n_threads);
  run_tasks(threads, n_directions * shares.count(), [&](int64_t task) {
    const int64_t k = task % n_directions;
    const std::vector<Image> images = shares.share(task / n_directions);
    const PixelProduct product(weights, packed[k]);
    if (shape.stable)
      Pass<true>{shape, directions[k], product}.run(images);
    else
      Pass<false>{shape, directions[k], product}.run(images);
  });
}

}  // namespace
}  // namespace rtf

extern "C" {

int rtf_mdlstm_rounds(void) { return RTF_PAIRS; }

int64_t rtf_mdlstm_scratch_size(int64_t units, int rounded, int64_t n_directions) {
  return rtf::scratch_of(rtf::size_of<rtf::PackedWeights>(units, rounded != 0), n_directions);
}

void rtf_mdlstm_forward_f32(const RtfMdLstmShape* shape, int rounded, int64_t n_directions,
                            const RtfMdLstmForward* directions, float* scratch, const RtfThreads* threads) {
  using namespace rtf;
  const PixelWeights weights = forward_weights(shape->units, rounded);
  run_all<Forward>(*shape, weights, n_directions, directions, scratch, *threads,
                   [&](const float* r, float* packed) { weights.pack(r, packed); });
}

void rtf_mdlstm_backward_f32(const RtfMdLstmShape* shape, int rounded, int64_t n_directions,
                             const RtfMdLstmBackward* directions, float* scratch, const RtfThreads* threads) {
  using namespace rtf;
  const PixelWeights weights = backward_weights(shape->units, rounded);
  run_all<Backward>(*shape, weights, n_directions, directions, scratch, *threads,
                    [&](const float* r, float* packed) { weights.pack_transposed(r, packed); });
}
}
