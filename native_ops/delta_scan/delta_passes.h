// The two kinds of passes of a head over its frames, with a state that stays in the cache.
#pragma once

#include "../common/heads.h"

namespace rtf {

// In a pass with the state [keys, values] the columns are independent, but each frame waits for what its key reads:
//
//   state = decay * state + b u^T + x y^T;   out = state^T z;   u of the next frame = state^T a
struct ReadingFrame {
  const float *decay, *b, *x, *z;  // [keys]
  const float* a;                  // [keys], of the next u
  const float* y;                  // [values]
  float *out, *u;                  // [values]
};

constexpr int kReadingTile = kLanes == 16 ? 4 : 2;  // vectors of columns

// Runs n frames for some columns. u [values] is what the first one takes, and then what the frame after the last takes.
template <int kVectors>
void run_reading_tile(const ReadingFrame* frames, int64_t n, int64_t rows, int64_t column, int64_t stride, float* state,
                      float* u) {
  Vec read[kVectors];
  for (int j = 0; j < kVectors; ++j) read[j] = load(u + column + j * kLanes);
  for (int64_t f = 0; f < n; ++f) {
    const ReadingFrame& frame = frames[f];
    Vec y[kVectors], out[kVectors] = {}, next[kVectors] = {};
    for (int j = 0; j < kVectors; ++j) y[j] = load(frame.y + column + j * kLanes);
    for (int64_t r = 0; r < rows; ++r) {
      float* row = state + r * stride + column;
      const Vec decay = splat(frame.decay[r]), b = splat(frame.b[r]), x = splat(frame.x[r]), z = splat(frame.z[r]);
      const Vec a = splat(frame.a[r]);
      for (int j = 0; j < kVectors; ++j) {
        const Vec s = load(row + j * kLanes) * decay + b * read[j] + x * y[j];
        out[j] += z * s;
        next[j] += a * s;
        store(row + j * kLanes, s);
      }
    }
    for (int j = 0; j < kVectors; ++j) {
      store(frame.out + column + j * kLanes, out[j]);
      store(frame.u + column + j * kLanes, next[j]);
      read[j] = next[j];
    }
  }
  for (int j = 0; j < kVectors; ++j) store(u + column + j * kLanes, read[j]);
}

inline void run_reading(const ReadingFrame* frames, int64_t n, int64_t rows, int64_t stride, float* state, float* u) {
  int64_t column = 0;
  for (; column + kReadingTile * kLanes <= stride; column += kReadingTile * kLanes)
    run_reading_tile<kReadingTile>(frames, n, rows, column, stride, state, u);
  for (; column < stride; column += kLanes) run_reading_tile<1>(frames, n, rows, column, stride, state, u);
}

// In a pass with the transposed state [values, keys] all u are known:
//
//   state = state * decay + u b^T + x y^T;   out = state^T z;   out_2 = state^T z_2, of this frame or the one before
struct KnownFrame {
  const float *decay, *b, *y;    // [keys]
  const float *u, *x, *z, *z_2;  // [values]
  float *out, *out_2;            // [keys]
};

constexpr int kKnownTile = kLanes == 16 ? 2 : 1;  // vectors of columns
constexpr int kKnownFrames = 2;                   // at once

template <bool kBefore, int kVectors, int kFrames>
inline void run_known_tile(const KnownFrame* frames, int64_t rows, int64_t column, int64_t stride, float* state) {
  Vec decay[kFrames][kVectors], b[kFrames][kVectors], y[kFrames][kVectors];
  Vec out[kFrames][kVectors], out_2[kFrames][kVectors];
  for (int f = 0; f < kFrames; ++f)
    for (int j = 0; j < kVectors; ++j) {
      const int64_t at = column + j * kLanes;
      decay[f][j] = load(frames[f].decay + at);
      b[f][j] = load(frames[f].b + at);
      y[f][j] = load(frames[f].y + at);
      out[f][j] = out_2[f][j] = Vec{};
    }
  for (int64_t r = 0; r < rows; ++r) {
    float* row = state + r * stride + column;
    Vec s[kVectors];
    for (int j = 0; j < kVectors; ++j) s[j] = load(row + j * kLanes);
    for (int f = 0; f < kFrames; ++f) {
      const Vec u = splat(frames[f].u[r]), x = splat(frames[f].x[r]);
      const Vec z = splat(frames[f].z[r]), z_2 = splat(frames[f].z_2[r]);
      for (int j = 0; j < kVectors; ++j) {
        if (kBefore) out_2[f][j] += z_2 * s[j];
        s[j] = s[j] * decay[f][j] + u * b[f][j] + x * y[f][j];
        out[f][j] += z * s[j];
        if (!kBefore) out_2[f][j] += z_2 * s[j];
      }
    }
    for (int j = 0; j < kVectors; ++j) store(row + j * kLanes, s[j]);
  }
  for (int f = 0; f < kFrames; ++f)
    for (int j = 0; j < kVectors; ++j) {
      store(frames[f].out + column + j * kLanes, out[f][j]);
      store(frames[f].out_2 + column + j * kLanes, out_2[f][j]);
    }
}

template <bool kBefore, int kVectors>
void run_known_columns(const KnownFrame* frames, int64_t n, int64_t rows, int64_t column, int64_t stride,
                       float* state) {
  int64_t f = 0;
  for (; f + kKnownFrames <= n; f += kKnownFrames)
    run_known_tile<kBefore, kVectors, kKnownFrames>(frames + f, rows, column, stride, state);
  for (; f < n; ++f) run_known_tile<kBefore, kVectors, 1>(frames + f, rows, column, stride, state);
}

// kBefore: out_2 reads the state before the frame.
template <bool kBefore>
void run_known(const KnownFrame* frames, int64_t n, int64_t rows, int64_t stride, float* state) {
  int64_t column = 0;
  for (; column + kKnownTile * kLanes <= stride; column += kKnownTile * kLanes)
    run_known_columns<kBefore, kKnownTile>(frames, n, rows, column, stride, state);
  for (; column < stride; column += kLanes) run_known_columns<kBefore, 1>(frames, n, rows, column, stride, state);
}

}  // namespace rtf
