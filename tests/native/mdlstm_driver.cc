// Runs the MDLSTM kernels over many sizes on arrays of exactly the size that they need, for the sanitizers to watch.
#include <cstdio>
#include <vector>

#include "driver.h"
#include "mdlstm/mdlstm.h"

namespace {

std::vector<int32_t> random_sizes(int64_t batch, int64_t most) {
  std::vector<int32_t> sizes(batch);
  for (int64_t b = 0; b < batch; ++b) sizes[b] = b == 0 ? most : std::rand() % (most + 1);
  return sizes;
}

// The arrays of a direction. The gates of every other one lie where its input was, and the gradient where the gates
// were.
struct Arrays {
  Array z, r, h, c, gates, dh, dz, before;

  Arrays(int64_t pixels, int64_t H)
      : z(random_array(pixels * 5 * H)),
        r(random_array(10 * H * H)),
        h(pixels * H),
        c(pixels * H),
        gates(pixels * 5 * H),
        dh(random_array(pixels * H)),
        dz(pixels * 5 * H),
        before(pixels * 2 * H) {}

  RtfMdLstmForward forward(int k) {
    return {k & 1, k >> 1, z.data(), r.data(), h.data(), c.data(), k % 2 ? z.data() : gates.data()};
  }
  RtfMdLstmBackward backward(int k) {
    float* values = k % 2 ? z.data() : gates.data();
    return {k & 1, k >> 1, r.data(), h.data(), c.data(), values, dh.data(), k % 2 ? values : dz.data(), before.data()};
  }
};

bool run(int64_t B, int64_t Y, int64_t X, int64_t H, int n_directions, int n_threads, int stable) {
  const std::vector<int32_t> heights = random_sizes(B, Y), widths = random_sizes(B, X);
  const RtfMdLstmShape shape{B, Y, X, H, heights.data(), widths.data(), stable};
  const RtfThreads threads{run_threads, nullptr, n_threads};
  std::vector<Arrays> arrays;
  std::vector<RtfMdLstmForward> forward;
  std::vector<RtfMdLstmBackward> backward;
  for (int k = 0; k < n_directions; ++k) arrays.emplace_back(B * Y * X, H);
  for (int k = 0; k < n_directions; ++k) {
    forward.push_back(arrays[k].forward(k));
    backward.push_back(arrays[k].backward(k));
  }
  Array scratch(rtf_mdlstm_scratch_size(H, n_directions));
  rtf_mdlstm_forward_f32(&shape, n_directions, forward.data(), scratch.data(), &threads);
  rtf_mdlstm_backward_f32(&shape, n_directions, backward.data(), scratch.data(), &threads);
  for (const Arrays& a : arrays)
    if (!finite(a.h) || !finite(a.c) || !finite(a.dz) || !finite(a.before)) return false;
  return true;
}

}  // namespace

int main() {
  const int64_t sizes[][4] = {{1, 1, 1, 1}, {3, 4, 5, 3}, {2, 1, 6, 16}, {2, 6, 1, 17}, {4, 3, 7, 37},
                              {0, 3, 3, 2}, {2, 0, 3, 2}, {2, 3, 0, 2},  {3, 5, 5, 64}, {5, 3, 3, 33}};
  for (const auto& s : sizes)
    for (int n_threads = 1; n_threads <= 3; ++n_threads)
      for (int n_directions = 1; n_directions <= 4; n_directions += 3)
        for (int stable = 0; stable < 2; ++stable)
          if (!run(s[0], s[1], s[2], s[3], n_directions, n_threads, stable)) {
            std::puts("not finite");
            return 1;
          }
  std::puts("good");
}
