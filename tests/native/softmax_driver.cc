// Cross entropy of a softmax on arrays of exactly the size that they need, which sanitizers or guards watch; in place,
// without a gradient, against sums in double.
#include <cmath>

#include "driver.h"
#include "softmax/softmax.h"

namespace {

struct Result {
  Array values, errors, gradient;
  bool operator==(const Result& other) const {
    return values == other.values && errors == other.errors && gradient == other.gradient;
  }
};

Result run(const RtfSoftmaxCe& shape, const Array& z, const Array& bias, const std::vector<int32_t>& target,
           int n_threads, bool in_place) {
  const RtfThreads threads{run_threads, nullptr, n_threads};
  Result result{Array(shape.frames, NAN), Array(shape.frames, NAN), in_place ? z : Array(z.size(), NAN)};
  rtf_softmax_ce_f32(&shape, in_place ? result.gradient.data() : z.data(), bias.data(), target.data(),
                     result.values.data(), result.errors.data(), result.gradient.data(), &threads);
  return result;
}

bool check(const RtfSoftmaxCe& shape) {
  const int64_t labels = shape.labels;
  const Array z = random_array(shape.frames * labels), bias = random_array(labels);
  std::vector<int32_t> target(shape.frames);
  for (int64_t t = 0; t < shape.frames; ++t) target[t] = static_cast<int32_t>((7 * t + labels - 1) % labels);
  const Result result = run(shape, z, bias, target, 1, false);
  bool good = result == run(shape, z, bias, target, 3, false) && result == run(shape, z, bias, target, 2, true);
  Array values(shape.frames, NAN), errors(shape.frames, NAN);
  const RtfThreads threads{run_threads, nullptr, 2};
  rtf_softmax_ce_f32(&shape, z.data(), bias.data(), target.data(), values.data(), errors.data(), nullptr, &threads);
  good &= values == result.values && errors == result.errors;
  for (int64_t t = 0; t < shape.frames; ++t) {
    const auto logit = [&](int64_t k) { return double(z[t * labels + k]) + bias[k]; };
    double sum = 0, plain = 0;
    int64_t best = 0;
    for (int64_t k = 0; k < labels; ++k) {
      sum += std::exp(logit(k));
      plain += logit(k);
      if (float(logit(k)) > float(logit(best))) best = k;
    }
    const int64_t y = target[t];
    const double c =
        std::log(sum) * (shape.on + (labels - 1) * shape.off) - shape.off * plain - (shape.on - shape.off) * logit(y);
    const double missed = std::max(1 - std::exp(logit(y)) / sum, 1e-12), weight = std::pow(missed, shape.focal);
    const double value = (c - shape.entropy) * weight;
    good &= std::fabs(result.values[t] - value) <= 1e-4 && result.errors[t] == (best == y ? 0.0f : 1.0f);
    double total = 0;  // the gradient of a softmax sums to 0
    for (int64_t k = 0; k < labels; ++k) total += result.gradient[t * labels + k];
    good &= std::fabs(total) <= 1e-4;
    if (shape.focal == 0)
      for (int64_t k = 0; k < labels; ++k) {
        const double wanted = std::exp(logit(k)) / sum - (k == y ? shape.on : shape.off);
        good &= std::fabs(result.gradient[t * labels + k] - wanted) <= 1e-5;
      }
  }
  if (!good) std::printf("wrong: %ld frames, %ld labels, focal %g\n", long(shape.frames), long(labels), shape.focal);
  return good;
}

}  // namespace

int main() {
  for (int64_t frames : {0, 1, 5})
    for (int64_t labels : {2, 3, 4, 15, 16, 17, 31, 33, 63, 64, 65, 129, 200}) {
      const float off = 0.1f / (labels - 1);
      if (!check(RtfSoftmaxCe{frames, labels, 1, 0, 0, 0})) return 1;
      if (!check(RtfSoftmaxCe{frames, labels, 0.9f, off, 0.2f, 0})) return 1;
      if (!check(RtfSoftmaxCe{frames, labels, 0.9f, off, 0.2f, 1.5f})) return 1;
    }
  std::puts("good");
  return 0;
}
