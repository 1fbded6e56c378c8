// Forward-backward and Viterbi over the chain of one sequence, with vectors of states.
#pragma once

#include <algorithm>
#include <cstdint>

#include "../common/packed_gemm.h"
#include "scaled.h"

namespace rtf {

// A frame in an array of states: a margin of empty states, then the states. They are followed by the margin of the next
// row.
inline int64_t row_size(int64_t states) { return kLanes + whole_vectors(states); }

// Scores of one sequence: class c in frame t has values[t * step + c] - offset[t].
struct SequenceScores {
  int64_t frames;
  const float* values;
  int64_t step;
  const float* offset;  // or null

  const float* frame(int64_t t) const { return values + t * step; }
  float shift(int64_t t) const { return offset ? offset[t] : 0.0f; }
};

// The arrays of one thread, for sequences of at most this many frames and states.
struct ChainSpace {
  ChainSpace(Arena& arena, int64_t frames, int64_t states) {
    const int64_t row = row_size(states), margin = kLanes;
    alpha_m = arena.take(frames * row + margin);
    alpha_e = arena.take(frames * row + margin);
    for (float*& array : rows) array = arena.take(row + margin);
    loop = arena.take(row + margin);
    skip = arena.take(row + margin);
    classes = reinterpret_cast<int32_t*>(arena.take(row));
    others = reinterpret_cast<int32_t*>(arena.take(row));
    posteriors = arena.take(row);
    offset = arena.take(frames);
    factor = arena.take(frames);
  }

  float *alpha_m, *alpha_e;  // forward: [frames, row]
  float* rows[4];            // backward: m and e, of the current and of the next frame
  float *loop, *skip;        // 0 if allowed, else kNone
  int32_t *classes, *others;
  float *posteriors, *offset, *factor;
};

// The chain of one sequence; its arrays are in a ChainSpace.
class Chain {
 public:
  // Call this after classes, loop and skip of all states have been set in `space`.
  Chain(int64_t states, bool optional_ends, ChainSpace* space)
      : states_(states),
        width_(whole_vectors(states)),
        row_(row_size(states)),
        optional_ends_(optional_ends),
        space_(space) {
    std::fill(space->classes + states, space->classes + width_, 0);
    for (float* array : {space->loop, space->skip}) std::fill(array + states, array + width_ + kLanes, kNone);
    for (int64_t s = 0; s < states; ++s)
      if (space->classes[s] != space->classes[0]) space->others[n_others_++] = static_cast<int32_t>(s);
  }

  int64_t states() const { return states_; }
  int64_t width() const { return width_; }
  bool may_begin(int64_t s) const { return s <= (optional_ends_ ? 1 : 0); }
  bool may_end(int64_t s) const { return s < states_ && s >= states_ - (optional_ends_ ? 2 : 1); }
  bool may_be_empty() const { return states_ <= (optional_ends_ ? 1 : 0); }

  // The scores of states s .. s + kLanes - 1.
  Vec emission(const SequenceScores& scores, int64_t t, int64_t s) const {
    const float* frame = scores.frame(t);
    const int32_t* classes = space_->classes + s;
    const int64_t n = states_ - s;
    Vec x;
    IVec exists;
    for (int i = 0; i < kLanes; ++i) x[i] = frame[classes[i]];
    for (int i = 0; i < kLanes; ++i) exists[i] = i < n ? -1 : 0;
    return exists ? x - splat(scores.shift(t)) : splat(-INFINITY);
  }

  // Fills alpha and returns the sum over all alignments.
  ScaledDouble forward(const SequenceScores& scores) const {
    ScaledDouble total;
    for (int64_t t = 0; t <= scores.frames; ++t) clear_margin(t * row_);
    for (int64_t t = 0; t < scores.frames; ++t)
      for (int64_t s = 0; s < width_; s += kLanes) {
        const Scaled emitted = scaled_exp(emission(scores, t, s));
        const int64_t at = t * row_ + kLanes + s;
        const Scaled here = t ? arrive(at - row_, s, emitted) : begin(s, emitted);
        store(space_->alpha_m + at, here.m);
        store(space_->alpha_e + at, here.e);
      }
    if (scores.frames == 0) {
      if (may_be_empty()) total.add(1.0, 0.0);
      return total;
    }
    const int64_t last = (scores.frames - 1) * row_ + kLanes;
    for (int64_t s = 0; s < states_; ++s)
      if (may_end(s)) total.add(space_->alpha_m[last + s], space_->alpha_e[last + s]);
    return total;
  }

  // Call after forward. Calls emit(t) from the last frame to the first, with the posteriors of all states in the space.
  template <typename Emit>
  void backward(const SequenceScores& scores, const ScaledDouble& total, const Emit& emit) const {
    const Vec inverse = splat(static_cast<float>(1.0 / total.m)), shift = splat(static_cast<float>(total.e));
    float *m = space_->rows[0], *e = space_->rows[1], *next_m = space_->rows[2], *next_e = space_->rows[3];
    for (float* array : space_->rows) std::fill(array, array + width_ + kLanes, 0.0f);
    for (float* array : {e, next_e}) std::fill(array, array + width_ + kLanes, kNone);
    for (int64_t t = scores.frames - 1; t >= 0; --t) {
      for (int64_t s = 0; s < width_; s += kLanes) {
        const Scaled one = {splat(1.0f), splat(0.0f)};
        const Scaled beta = t < scores.frames - 1 ? leave(next_m + s, next_e + s, s, one) : end(s);
        const int64_t at = t * row_ + kLanes + s;
        Vec power = load(space_->alpha_e + at) + beta.e - shift;
        power = power < splat(100.0f) ? power : splat(100.0f);
        const Vec share = load(space_->alpha_m + at) * beta.m * inverse * power_of_two(power);
        store(space_->posteriors + s, share > splat(1.0f) ? splat(1.0f) : share);
        const Scaled emitted = scaled_exp(emission(scores, t, s));
        const Scaled before = normalised(beta.m * emitted.m, beta.e + emitted.e);
        store(m + s, before.m);
        store(e + s, before.e);
      }
      emit(t);
      std::swap(m, next_m);
      std::swap(e, next_e);
    }
  }

  // row[class] += sign * posterior, over all states. Most states of CTC share the class of the first one, the blank:
  // they are summed first.
  void add_to_classes(float sign, float* row) const {
    const float* posteriors = space_->posteriors;
    float first = 0.0f;
    int64_t other = 0;
    for (int64_t s = 0; s < states_; ++s) {
      if (other < n_others_ && space_->others[other] == s) {
        row[space_->classes[s]] += sign * posteriors[s];
        ++other;
      } else {
        first += posteriors[s];
      }
    }
    if (states_) row[space_->classes[0]] += sign * first;
  }

 private:
  void clear_margin(int64_t at) const {
    std::fill(space_->alpha_m + at, space_->alpha_m + at + kLanes, 0.0f);
    std::fill(space_->alpha_e + at, space_->alpha_e + at + kLanes, kNone);
  }

  template <typename Allowed>
  static Scaled marked(const Allowed& allowed, int64_t s) {
    Scaled mark;
    for (int i = 0; i < kLanes; ++i) {
      mark.m[i] = allowed(s + i) ? 1.0f : 0.0f;
      mark.e[i] = allowed(s + i) ? 0.0f : kNone;
    }
    return mark;
  }

  Scaled begin(int64_t s, const Scaled& emitted) const {
    const Scaled start = marked([this](int64_t state) { return may_begin(state); }, s);
    return normalised(start.m * emitted.m, start.e + emitted.e);
  }

  Scaled end(int64_t s) const {
    return marked([this](int64_t state) { return may_end(state); }, s);
  }

  Scaled arrive(int64_t from, int64_t s, const Scaled& emitted) const {
    const float *m = space_->alpha_m + from, *e = space_->alpha_e + from;
    const Scaled stay = {load(m), load(e) + load(space_->loop + s)};
    const Scaled come = {load(m - 1), load(e - 1)};
    const Scaled jump = {load(m - 2), load(e - 2) + load(space_->skip + s)};
    return sum_times(stay, come, jump, emitted);
  }

  Scaled leave(const float* m, const float* e, int64_t s, const Scaled& one) const {
    const Scaled stay = {load(m), load(e) + load(space_->loop + s)};
    const Scaled go = {load(m + 1), load(e + 1)};
    const Scaled jump = {load(m + 2), load(e + 2) + load(space_->skip + s + 2)};
    return sum_times(stay, go, jump, one);
  }

  int64_t states_, width_, row_;
  bool optional_ends_;
  ChainSpace* space_;
  int64_t n_others_ = 0;
};

}  // namespace rtf
