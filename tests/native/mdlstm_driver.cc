// Runs the MDLSTM kernels over many sizes on arrays of exactly the size that they need, for the sanitizers to watch;
// the results are the same for any number of threads.
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

  Arrays(int64_t pixels, int64_t H, float scale)
      : z(random_array(pixels * 5 * H)),
        r(random_array(10 * H * H, scale)),
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

struct Size {
  RtfMdLstmShape shape;
  int n_directions;
  int64_t frames, batch, units;

  Size(const RtfMdLstmShape& shape, int n_directions)
      : shape(shape),
        n_directions(n_directions),
        frames(shape.rows * shape.columns),
        batch(shape.batch),
        units(shape.units) {}
};

Array results_of(const Size& size, float scale, int rounded, const RtfThreads& threads) {
  const RtfMdLstmShape& shape = size.shape;
  std::srand(1);
  std::vector<Arrays> arrays;
  std::vector<RtfMdLstmForward> forward;
  std::vector<RtfMdLstmBackward> backward;
  for (int k = 0; k < size.n_directions; ++k) arrays.emplace_back(size.frames * size.batch, size.units, scale);
  for (int k = 0; k < size.n_directions; ++k) {
    forward.push_back(arrays[k].forward(k));
    backward.push_back(arrays[k].backward(k));
  }
  Array scratch(rtf_mdlstm_scratch_size(shape.units, rounded, size.n_directions));
  rtf_mdlstm_forward_f32(&shape, rounded, size.n_directions, forward.data(), scratch.data(), &threads);
  rtf_mdlstm_backward_f32(&shape, rounded, size.n_directions, backward.data(), scratch.data(), &threads);
  Array all;
  for (const Arrays& a : arrays)
    for (const Array* x : {&a.h, &a.c, &a.z, &a.gates, &a.dz, &a.before}) all.insert(all.end(), x->begin(), x->end());
  return all;
}

bool run(int64_t B, int64_t Y, int64_t X, int64_t H, int n_directions, int stable) {
  const std::vector<int32_t> heights = random_sizes(B, Y), widths = random_sizes(B, X);
  const Size size({B, Y, X, H, heights.data(), widths.data(), stable}, n_directions);
  const auto with = [&](int n_threads) {
    return results_of_forms(size, rtf_mdlstm_rounds(), RtfThreads{run_threads, nullptr, n_threads}, results_of);
  };
  const Array alone = with(1);
  return finite(alone) && alone == with(2) && alone == with(3);
}

}  // namespace

int main() {
  const int64_t sizes[][4] = {{1, 1, 1, 1}, {3, 4, 5, 3}, {2, 1, 6, 16}, {2, 6, 1, 17}, {4, 3, 7, 37},
                              {0, 3, 3, 2}, {2, 0, 3, 2}, {2, 3, 0, 2},  {3, 5, 5, 64}, {5, 3, 3, 33}};
  for (const auto& s : sizes)
    for (int n_directions = 1; n_directions <= 4; n_directions += 3)
      for (int stable = 0; stable < 2; ++stable)
        if (!run(s[0], s[1], s[2], s[3], n_directions, stable)) {
          std::printf("wrong: B %ld Y %ld X %ld H %ld\n", long(s[0]), long(s[1]), long(s[2]), long(s[3]));
          return 1;
        }
  std::puts("good");
}
