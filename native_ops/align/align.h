// Sums and maxima over alignments of labels to frames, for ragged batches. Float32, row-major, independent of
// TensorFlow.
#pragma once

#include <stdint.h>

#include "../common/parallel.h"

extern "C" {

// Scores, as logarithms, time-major. Frames after the end of a sequence are not read.
typedef struct RtfScores {
  int64_t frames, batch, classes;
  const float* values;     // [frames, batch, classes]
  const int32_t* lengths;  // [batch], each in 0 .. frames
} RtfScores;

// One chain of states per sequence. Each state consumes one class per frame. A state can be repeated (loop), followed
// by the next one, or entered from two states before (skip).
typedef struct RtfChains {
  int64_t states;
  const int32_t* classes;     // [batch, states], the first num_states of each in 0 .. classes - 1
  const int32_t* num_states;  // [batch], each in 0 .. states
  const uint8_t* loop;        // [batch, states]
  const uint8_t* skip;        // [batch, states]
  int optional_ends;          // the first and the last state may be left out
} RtfChains;

// The chains of CTC: blank, label, blank, ..., blank.
typedef struct RtfCtc {
  int64_t max_labels;
  const int32_t* labels;         // [batch, max_labels]
  const int32_t* label_lengths;  // [batch]
  int32_t blank;
  int label_loop;                 // else a label lasts exactly one frame
  int normalized;                 // the scores are log probabilities already
  int softmax_without_alignment;  // the gradient for sequences with too few frames; else 0
} RtfCtc;

// Floats of scratch memory for all three functions.
int64_t rtf_chain_scratch_size(int64_t frames, int64_t states, int n_threads);

// posteriors [frames, batch, classes]: 0 in padded frames and where there is no alignment; total [batch]: log of the
// sum over all alignments.
void rtf_chain_soft_f32(const RtfScores* scores, const RtfChains* chains, float* posteriors, float* total,
                        float* scratch, const RtfThreads* threads);

// path [frames, batch]: the class of each frame on the best alignment, 0 if there is none; total [batch]: its score.
void rtf_chain_best_f32(const RtfScores* scores, const RtfChains* chains, int32_t* path, float* total, float* scratch,
                        const RtfThreads* threads);

// loss [batch]: minus the log of the sum over all alignments, 0 if there are too few frames; gradient: of the loss with
// respect to the scores, same shape.
void rtf_ctc_f32(const RtfScores* scores, const RtfCtc* ctc, float* loss, float* gradient, float* scratch,
                 const RtfThreads* threads);

// One finite-state acceptor per sequence. State 0 is the initial state, the last one the final state; each edge
// consumes one frame.
typedef struct RtfAcceptors {
  int64_t edges, states;      // maximum over all sequences
  const int32_t* arcs;        // [batch, edges, 3]: from, to, class; class -1: unused entry
  const float* costs;         // [batch, edges]: negative log probabilities
  const int32_t* num_states;  // [batch], each in 1 .. states
} RtfAcceptors;

// Floats of scratch memory.
int64_t rtf_acceptor_scratch_size(int64_t frames, const RtfAcceptors* acceptors, int n_threads);

// See rtf_chain_soft_f32.
void rtf_acceptor_soft_f32(const RtfScores* scores, const RtfAcceptors* acceptors, float* posteriors, float* total,
                           float* scratch, const RtfThreads* threads);

// Integers of scratch memory.
int64_t rtf_acceptor_best_scratch_size(int64_t frames, const RtfAcceptors* acceptors, int n_threads);

// See rtf_chain_best_f32. Of paths to a state with equal scores, the one with the earlier last edge is taken.
void rtf_acceptor_best_f32(const RtfScores* scores, const RtfAcceptors* acceptors, int32_t* path, float* total,
                           int32_t* scratch, const RtfThreads* threads);

// Scores of a transducer: for each class, given the number of frames and of labels consumed so far.
typedef struct RtfTransducer {
  int64_t batch, frames, max_labels, classes;
  const float* values;           // [batch, frames, max_labels + 1, classes]
  const int32_t* lengths;        // [batch]
  const int32_t* labels;         // [batch, max_labels]
  const int32_t* label_lengths;  // [batch]
  int32_t blank;
  int label_takes_frame;  // each frame emits the blank or one label; else any number of labels, then the blank
  int normalized;         // the values are log probabilities already
} RtfTransducer;

// Floats of scratch memory.
int64_t rtf_transducer_scratch_size(const RtfTransducer* transducer, int n_threads);

// loss [batch]: minus the log of the sum over all alignments, 0 if there is none; gradient: of the loss with respect to
// the values, same shape.
void rtf_transducer_f32(const RtfTransducer* transducer, float* loss, float* gradient, float* scratch,
                        const RtfThreads* threads);
}
