// MDLSTM on a GPU: the plain C interface of the kernels, without CUDA's headers or TensorFlow's. Formula, arrays and padding are
// those of mdlstm.h; here the arrays lie in the memory of the current device. A stream is a cudaStream_t, null the default one.
#pragma once

#include <stdint.h>

#include "mdlstm.h"

extern "C" {

enum { RTF_MDLSTM_CUDA_DIRECTIONS = 4 };  // the most that one call takes

// What the arrays hold. States, products and weights are float inside of the kernels.
enum RtfMdLstmType { RTF_MDLSTM_FLOAT = 0, RTF_MDLSTM_BFLOAT16 = 1, RTF_MDLSTM_HALF = 2 };

// The fields of RtfMdLstmForward and RtfMdLstmBackward, but for a type that is said elsewhere.
typedef struct RtfMdLstmCudaForward {
  int flip_rows, flip_columns;
  const void *z, *r;
  void *h, *c, *gates;
} RtfMdLstmCudaForward;

typedef struct RtfMdLstmCudaBackward {
  int flip_rows, flip_columns;
  const void *r, *h, *c, *gates, *dh;
  void *dz, *before;
} RtfMdLstmCudaBackward;

// What a call may use of the device.
typedef struct RtfMdLstmCudaLimits {
  int multiprocessors;
  int64_t shared_bytes;  // of a block
} RtfMdLstmCudaLimits;

// How a call is dealt out to the blocks of the device, and how much scratch memory it needs there.
typedef struct RtfMdLstmCudaPlan {
  int per_diagonal;    // one launch for each diagonal, as the weights do not fit on the chip; else one for all of them
  int groups;          // parts of the batch, each with blocks of its own
  int slices;          // blocks that share the units of a direction and group
  int units_of_slice;  // a multiple of 8; the last slice may have fewer
  int threads;         // of a block
  int64_t shared_bytes;  // of a block
  int64_t workspace_bytes;
} RtfMdLstmCudaPlan;

// shape: heights and widths are in the memory of the host, also below. limits: null for those of the current device.
// All functions return null, or what went wrong.
const char* rtf_mdlstm_cuda_plan(const RtfMdLstmShape* shape, int64_t n_directions, int backward,
                                 const RtfMdLstmCudaLimits* limits, RtfMdLstmCudaPlan* plan);

// They launch work on the stream and return at once; the host's memory may go then. No synchronization, so a CUDA graph can
// capture them. workspace: plan->workspace_bytes bytes, a multiple of 256 as its address; its contents do not matter.
const char* rtf_mdlstm_forward_cuda(const RtfMdLstmShape* shape, int64_t n_directions,
                                    const RtfMdLstmCudaForward* directions, int type, const RtfMdLstmCudaPlan* plan,
                                    void* workspace, void* stream);

const char* rtf_mdlstm_backward_cuda(const RtfMdLstmShape* shape, int64_t n_directions,
                                     const RtfMdLstmCudaBackward* directions, int type, const RtfMdLstmCudaPlan* plan,
                                     void* workspace, void* stream);
}
