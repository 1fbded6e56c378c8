// The functions of align.h on the GPU, independent of CUDA's and TensorFlow's headers.
//
// Floats, results and the workspace are in GPU memory. Integers and flags are in host memory; they have been checked
// and are read before the function returns. stream is a cudaStream_t; the functions do not synchronize. Sums have a
// fixed order: equal input gives equal bits. Scores of states and edges that no path can pass at their frame (live.h,
// reach.h) are not read, be they NaN. The functions return null, or the text of an error.
#pragma once

#include "align.h"

extern "C" {

// Size of the workspace in bytes; it has to be 256-byte aligned.
int64_t rtf_chain_cuda_workspace(const RtfScores* scores, int64_t states);
int64_t rtf_chain_best_cuda_workspace(const RtfScores* scores, int64_t states);
int64_t rtf_acceptor_cuda_workspace(const RtfScores* scores, const RtfAcceptors* acceptors);
int64_t rtf_acceptor_best_cuda_workspace(const RtfScores* scores, const RtfAcceptors* acceptors);
int64_t rtf_transducer_cuda_workspace(const RtfTransducer* transducer);

const char* rtf_chain_soft_cuda_f32(const RtfScores* scores, const RtfChains* chains, float* posteriors, float* total,
                                    void* workspace, void* stream);
const char* rtf_chain_best_cuda_f32(const RtfScores* scores, const RtfChains* chains, int32_t* path, float* total,
                                    void* workspace, void* stream);
// For 2 * max_labels + 1 states.
const char* rtf_ctc_cuda_f32(const RtfScores* scores, const RtfCtc* ctc, float* loss, float* gradient, void* workspace,
                             void* stream);
const char* rtf_acceptor_soft_cuda_f32(const RtfScores* scores, const RtfAcceptors* acceptors, float* posteriors,
                                       float* total, void* workspace, void* stream);
const char* rtf_acceptor_best_cuda_f32(const RtfScores* scores, const RtfAcceptors* acceptors, int32_t* path,
                                       float* total, void* workspace, void* stream);
const char* rtf_transducer_cuda_f32(const RtfTransducer* transducer, float* loss, float* gradient, void* workspace,
                                    void* stream);
}
