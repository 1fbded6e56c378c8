#include <algorithm>

#include "../common/ragged.h"
#include "align.h"
#include "chain.h"
#include "softmax.h"

namespace rtf {
namespace {

// The lattice of one sequence, step by step: a step is a frame if each label consumes one, else a frame or a label.
// After step d the state is the number of labels so far, so both transitions out of (d, labels) lead to step d + 1, and
// all states of a step are computed at once.
class Lattice {
 public:
  Lattice(Arena& arena, const RtfTransducer& all) : all_(all), row_(row_size(all.max_labels + 1)) {
    for (float** array : {&blank_, &label_, &alpha_m_, &alpha_e_})
      *array = arena.take((max_steps(all) + 1) * row_ + kLanes);
    for (float*& array : beta_) array = arena.take(row_ + kLanes);
    factor_ = arena.take(all.frames * (all.max_labels + 1));
  }

  float run(int64_t b, float* gradient) {
    begin(b, gradient);
    read_scores();
    const ScaledDouble total = forward();
    const bool found = !total.is_none();
    if (found) backward(total);
    write_gradient(found);
    return found ? static_cast<float>(-total.log()) : 0.0f;
  }

 private:
  static int64_t max_steps(const RtfTransducer& all) { return all.frames + all.max_labels; }

  void begin(int64_t b, float* gradient) {
    const int64_t size = all_.frames * (all_.max_labels + 1) * all_.classes;
    values_ = all_.values + b * size;
    gradient_ = gradient + b * size;
    labels_ = all_.labels + b * all_.max_labels;
    frames_ = all_.lengths[b];
    count_ = all_.label_lengths[b];
    steps_ = frames_ + (all_.label_takes_frame ? 0 : count_);
    width_ = whole_vectors(count_ + 1);
  }

  // Offsets in [frames, max_labels + 1] and in [steps, row].
  int64_t cell(int64_t t, int64_t u) const { return t * (all_.max_labels + 1) + u; }
  int64_t place(int64_t t, int64_t u) const { return (all_.label_takes_frame ? t : t + u) * row_ + kLanes + u; }

  void read_scores() {
    const int64_t n = all_.classes;
    for (float* array : {blank_, label_}) std::fill(array, array + (steps_ + 1) * row_ + kLanes, -INFINITY);
    for (int64_t t = 0; t < frames_; ++t)
      for (int64_t u = 0; u <= count_; ++u) {
        const float* x = values_ + cell(t, u) * n;
        float log_sum = 0.0f;
        if (!all_.normalized) log_sum = exponentials(x, n, gradient_ + cell(t, u) * n, factor_ + cell(t, u));
        blank_[place(t, u)] = x[all_.blank] - log_sum;
        if (u < count_) label_[place(t, u)] = x[labels_[u]] - log_sum;
      }
  }

  static Scaled at(const float* m, const float* e) { return {load(m), load(e)}; }
  static Scaled times(const Scaled& a, const Scaled& b) { return {a.m * b.m, a.e + b.e}; }
  static Scaled none() { return {splat(0.0f), splat(kNone)}; }
  static Scaled one() { return {splat(1.0f), splat(0.0f)}; }

  ScaledDouble forward() {
    std::fill(alpha_m_, alpha_m_ + (steps_ + 1) * row_ + kLanes, 0.0f);
    std::fill(alpha_e_, alpha_e_ + (steps_ + 1) * row_ + kLanes, kNone);
    alpha_m_[kLanes] = 1.0f;
    alpha_e_[kLanes] = 0.0f;
    for (int64_t d = 0; d < steps_; ++d)
      for (int64_t u = 0; u < width_; u += kLanes) {
        const int64_t from = d * row_ + kLanes + u;
        const Scaled stay = times(at(alpha_m_ + from, alpha_e_ + from), scaled_exp(load(blank_ + from)));
        const Scaled come = times(at(alpha_m_ + from - 1, alpha_e_ + from - 1), scaled_exp(load(label_ + from - 1)));
        const Scaled sum = sum_times(stay, come, none(), one());
        store(alpha_m_ + from + row_, sum.m);
        store(alpha_e_ + from + row_, sum.e);
      }
    ScaledDouble total;
    const int64_t last = steps_ * row_ + kLanes + count_;
    total.add(alpha_m_[last], alpha_e_[last]);
    return total;
  }

  // Stores in blank_ and label_ the probability that an alignment takes that transition.
  void backward(const ScaledDouble& total) {
    float *m = beta_[0], *e = beta_[1], *next_m = beta_[2], *next_e = beta_[3];
    for (float* array : {m, next_m}) std::fill(array, array + row_ + kLanes, 0.0f);
    for (float* array : {e, next_e}) std::fill(array, array + row_ + kLanes, kNone);
    next_m[count_] = 1.0f;
    next_e[count_] = 0.0f;
    for (int64_t d = steps_ - 1; d >= 0; --d) {
      for (int64_t u = 0; u < width_; u += kLanes) {
        const int64_t here = d * row_ + kLanes + u;
        const Scaled alpha = at(alpha_m_ + here, alpha_e_ + here);
        const Scaled stay = times(at(next_m + u, next_e + u), scaled_exp(load(blank_ + here)));
        const Scaled go = times(at(next_m + u + 1, next_e + u + 1), scaled_exp(load(label_ + here)));
        store(blank_ + here, share(alpha, stay, total));
        store(label_ + here, share(alpha, go, total));
        const Scaled sum = sum_times(stay, go, none(), one());
        store(m + u, sum.m);
        store(e + u, sum.e);
      }
      std::swap(m, next_m);
      std::swap(e, next_e);
    }
  }

  static Vec share(const Scaled& alpha, const Scaled& ahead, const ScaledDouble& total) {
    Vec power = alpha.e + ahead.e - splat(static_cast<float>(total.e));
    power = power < splat(100.0f) ? power : splat(100.0f);
    const Vec x = alpha.m * ahead.m * splat(static_cast<float>(1.0 / total.m)) * power_of_two(power);
    return x > splat(1.0f) ? splat(1.0f) : x;
  }

  void write_gradient(bool found) {
    const int64_t n = all_.classes;
    for (int64_t t = 0; t < all_.frames; ++t)
      for (int64_t u = 0; u <= all_.max_labels; ++u) {
        float* row = gradient_ + cell(t, u) * n;
        if (!found || t >= frames_ || u > count_) {
          std::fill(row, row + n, 0.0f);
          continue;
        }
        const float blank = blank_[place(t, u)], label = u < count_ ? label_[place(t, u)] : 0.0f;
        if (all_.normalized)
          std::fill(row, row + n, 0.0f);
        else
          scale_row(factor_[cell(t, u)] * (blank + label), n, row);
        row[all_.blank] -= blank;
        if (u < count_) row[labels_[u]] -= label;
      }
  }

  const RtfTransducer& all_;
  int64_t row_;
  float *blank_, *label_, *alpha_m_, *alpha_e_;  // [steps + 1, row]
  float* beta_[4];
  float* factor_;  // [frames, max_labels + 1]
  // of the sequence
  const float* values_;
  float* gradient_;
  const int32_t* labels_;
  int64_t frames_, count_, steps_, width_;
};

}  // namespace
}  // namespace rtf

extern "C" {

int64_t rtf_transducer_scratch_size(const RtfTransducer* transducer, int n_threads) {
  return rtf::scratch_of(rtf::size_of<rtf::Lattice>(*transducer), n_threads);
}

void rtf_transducer_f32(const RtfTransducer* transducer, float* loss, float* gradient, float* scratch,
                        const RtfThreads* threads) {
  if (transducer->batch == 0) return;
  const rtf::Shares shares({transducer->frames, transducer->batch, transducer->lengths, false}, threads->n_threads);
  const int64_t size = rtf::size_of<rtf::Lattice>(*transducer);
  rtf::run_tasks(*threads, shares.count(), [&](int64_t index) {
    rtf::Arena arena(scratch, index, size);
    rtf::Lattice lattice(arena, *transducer);
    for (int32_t b : shares.share(index)) loss[b] = lattice.run(b, gradient);
  });
}
}
