// Runs the GPU kernels of the MDLSTM in all ways on arrays of exactly their size, for the sanitizers to watch.
#define RTF_FLOAT_ONLY 1
#include "../driver.h"
#include "mdlstm/mdlstm_cuda.cu"

namespace {

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

  RtfMdLstmCudaForward forward(int k) {
    return {k & 1, k >> 1, z.data(), r.data(), h.data(), c.data(), k % 2 ? z.data() : gates.data()};
  }
  RtfMdLstmCudaBackward backward(int k) {
    float* values = k % 2 ? z.data() : gates.data();
    return {k & 1, k >> 1, r.data(), h.data(), c.data(), values, dh.data(), k % 2 ? values : dz.data(), before.data()};
  }
};

// Memory between guard pages.
struct Workspace {
  void* memory = nullptr;

  explicit Workspace(int64_t bytes) {
    if (posix_memalign(&memory, 256, bytes) != 0) abort();
    memset(memory, 0xff, bytes);
  }
  ~Workspace() { free(memory); }
};

const char* run(const RtfMdLstmShape& shape, int n_directions, const RtfMdLstmCudaLimits& limits) {
  std::vector<Arrays> arrays;
  std::vector<RtfMdLstmCudaForward> forward;
  std::vector<RtfMdLstmCudaBackward> backward;
  for (int k = 0; k < n_directions; ++k) arrays.emplace_back(shape.batch * shape.rows * shape.columns, shape.units);
  for (int k = 0; k < n_directions; ++k) {
    forward.push_back(arrays[k].forward(k));
    backward.push_back(arrays[k].backward(k));
  }
  for (int pass = 0; pass < 2; ++pass) {
    RtfMdLstmCudaPlan plan;
    if (const char* error = rtf_mdlstm_cuda_plan(&shape, n_directions, pass, &limits, &plan)) return error;
    const Workspace workspace(plan.workspace_bytes);
    const char* error = pass ? rtf_mdlstm_backward_cuda(&shape, n_directions, backward.data(), RTF_MDLSTM_FLOAT, &plan,
                                                        workspace.memory, rtf::emulation::stream())
                             : rtf_mdlstm_forward_cuda(&shape, n_directions, forward.data(), RTF_MDLSTM_FLOAT, &plan,
                                                       workspace.memory, rtf::emulation::stream());
    if (error != nullptr) return error;
  }
  for (const Arrays& a : arrays)
    if (!finite(a.h) || !finite(a.c) || !finite(a.dz) || !finite(a.before)) return "not finite";
  return nullptr;
}

}  // namespace

int main() {
  const int64_t sizes[][4] = {{1, 1, 1, 1}, {3, 4, 5, 3}, {2, 3, 2, 37}, {0, 3, 3, 2}, {2, 3, 0, 2}};
  const RtfMdLstmCudaLimits limits[] = {{4, 227 << 10}, {1, 227 << 10}, {4, 25000}, {4, 2000}};
  setenv("RTF_EMULATION_SMS", "4", 1);
  for (const auto& s : sizes)
    for (const RtfMdLstmCudaLimits& limit : limits)
      for (int count = 1; count <= 4; count += 3) {
        std::vector<int32_t> heights(s[0]), widths(s[0]);
        for (int64_t b = 0; b < s[0]; ++b) heights[b] = s[1] - b % (s[1] + 1), widths[b] = s[2] - 2 * b % (s[2] + 1);
        const RtfMdLstmShape shape{s[0], s[1], s[2], s[3], heights.data(), widths.data(), count == 1};
        if (const char* error = run(shape, count, limit)) return puts(error), 1;
      }
  puts("good");
}
