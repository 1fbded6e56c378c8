// A pass of a head over its frames. All passes, forward and backward, have this form, with a state [rows, columns]:
//
//   state = decay * state + x y^T;   out = state^T z
//
// A tile of columns stays in the first cache for a chunk of frames, and in registers for a few of them.
#pragma once

#include <cstdint>

#include "../common/vector.h"

namespace rtf {

// What the decay of a frame holds: one number, one for each row, or one for each column.
enum class Decay { kOne, kRows, kColumns };

// Whether out reads the state of its own frame, or the one before.
enum class Read { kAfter, kBefore };

constexpr int kChunk = 32;                      // frames
constexpr int kInRegisters = 4;                 // frames
constexpr int kVectors = kLanes == 16 ? 2 : 1;  // vectors of columns

// The arrays of some frames. y, out and decays of columns are as wide as the state in memory.
struct Frames {
  const float* x[kChunk];
  const float* z[kChunk];
  const float* decay[kChunk];
  const float* y[kChunk];
  float* out[kChunk];
};

template <Decay kDecay, Read kRead, int kVectors, int kFrames>
inline void run_tile(const Frames& frames, int first, int64_t rows, int64_t column, int64_t stride, float* state) {
  Vec y[kFrames][kVectors], out[kFrames][kVectors], decay[kFrames][kVectors];
  for (int f = 0; f < kFrames; ++f)
    for (int j = 0; j < kVectors; ++j) {
      y[f][j] = load(frames.y[first + f] + column + j * kLanes);
      out[f][j] = Vec{};
      if (kDecay == Decay::kColumns) decay[f][j] = load(frames.decay[first + f] + column + j * kLanes);
      if (kDecay == Decay::kOne) decay[f][j] = splat(frames.decay[first + f][0]);
    }
  for (int64_t r = 0; r < rows; ++r) {
    float* row = state + r * stride + column;
    Vec s[kVectors];
    for (int j = 0; j < kVectors; ++j) s[j] = load(row + j * kLanes);
    for (int f = 0; f < kFrames; ++f) {
      const Vec x = splat(frames.x[first + f][r]), z = splat(frames.z[first + f][r]);
      const Vec of_row = kDecay == Decay::kRows ? splat(frames.decay[first + f][r]) : Vec{};
      for (int j = 0; j < kVectors; ++j) {
        if (kRead == Read::kBefore) out[f][j] += z * s[j];
        s[j] = s[j] * (kDecay == Decay::kRows ? of_row : decay[f][j]) + x * y[f][j];
        if (kRead == Read::kAfter) out[f][j] += z * s[j];
      }
    }
    for (int j = 0; j < kVectors; ++j) store(row + j * kLanes, s[j]);
  }
  for (int f = 0; f < kFrames; ++f)
    for (int j = 0; j < kVectors; ++j) store(frames.out[first + f] + column + j * kLanes, out[f][j]);
}

template <Decay kDecay, Read kRead, int kVectors>
void run_columns(const Frames& frames, int n, int64_t rows, int64_t column, int64_t stride, float* state) {
  int f = 0;
  for (; f + kInRegisters <= n; f += kInRegisters)
    run_tile<kDecay, kRead, kVectors, kInRegisters>(frames, f, rows, column, stride, state);
  for (; f < n; ++f) run_tile<kDecay, kRead, kVectors, 1>(frames, f, rows, column, stride, state);
}

// Runs n frames; stride is the width of a row of the state, a multiple of kLanes.
template <Decay kDecay, Read kRead>
void run_frames(const Frames& frames, int n, int64_t rows, int64_t stride, float* state) {
  int64_t column = 0;
  for (; column + kVectors * kLanes <= stride; column += kVectors * kLanes)
    run_columns<kDecay, kRead, kVectors>(frames, n, rows, column, stride, state);
  for (; column < stride; column += kLanes) run_columns<kDecay, kRead, 1>(frames, n, rows, column, stride, state);
}

inline void run_frames(Decay decay, Read read, const Frames& frames, int n, int64_t rows, int64_t stride,
                       float* state) {
  const bool after = read == Read::kAfter;
  if (decay == Decay::kOne)
    after ? run_frames<Decay::kOne, Read::kAfter>(frames, n, rows, stride, state)
          : run_frames<Decay::kOne, Read::kBefore>(frames, n, rows, stride, state);
  else if (decay == Decay::kRows)
    after ? run_frames<Decay::kRows, Read::kAfter>(frames, n, rows, stride, state)
          : run_frames<Decay::kRows, Read::kBefore>(frames, n, rows, stride, state);
  else
    after ? run_frames<Decay::kColumns, Read::kAfter>(frames, n, rows, stride, state)
          : run_frames<Decay::kColumns, Read::kBefore>(frames, n, rows, stride, state);
}

}  // namespace rtf
