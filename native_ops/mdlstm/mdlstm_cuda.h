// MDLSTM on a GPU: the plain C interface of the kernels, independent of CUDA's and TensorFlow's headers. Formula,
// arrays and padding as in mdlstm.h, with arrays in the memory of the current device. A stream is a cudaStream_t, null
// the default stream.
#pragma once

#include <stdint.h>

#include "mdlstm.h"

extern "C" {

enum { RTF_MDLSTM_CUDA_DIRECTIONS = 4 };  // maximum per call

// The number format of the arrays. States, products and weights are float inside the kernels.
enum RtfMdLstmType { RTF_MDLSTM_FLOAT = 0, RTF_MDLSTM_BFLOAT16 = 1, RTF_MDLSTM_HALF = 2 };

// The fields of RtfMdLstmForward and RtfMdLstmBackward, with the number format given separately.
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

// Resources of the device that a call may use.
typedef struct RtfMdLstmCudaLimits {
  int multiprocessors;
  int64_t shared_bytes;  // per block
} RtfMdLstmCudaLimits;

// How a call is divided into blocks of the device, and the scratch memory that it needs there.
typedef struct RtfMdLstmCudaPlan {
  int per_diagonal;      // one launch per diagonal, if the weights do not fit on the chip; else one for all
  int groups;            // parts of the batch, each with its own blocks
  int slices;            // blocks that share the units of a direction and group
  int units_of_slice;    // a multiple of 8; the last slice may have fewer
  int threads;           // per block
  int64_t shared_bytes;  // per block
  int64_t workspace_bytes;
} RtfMdLstmCudaPlan;

// shape: heights and widths are in host memory, also below. limits: null for those of the current device. All functions
// return null, or the text of an error.
const char* rtf_mdlstm_cuda_plan(const RtfMdLstmShape* shape, int64_t n_directions, int backward,
                                 const RtfMdLstmCudaLimits* limits, RtfMdLstmCudaPlan* plan);

// These enqueue work on the stream and return at once; host memory may be freed then. They do not synchronize, so that
// a CUDA graph can capture them. workspace: plan->workspace_bytes bytes, 256-byte aligned, with arbitrary contents.
const char* rtf_mdlstm_forward_cuda(const RtfMdLstmShape* shape, int64_t n_directions,
                                    const RtfMdLstmCudaForward* directions, int type, const RtfMdLstmCudaPlan* plan,
                                    void* workspace, void* stream);

const char* rtf_mdlstm_backward_cuda(const RtfMdLstmShape* shape, int64_t n_directions,
                                     const RtfMdLstmCudaBackward* directions, int type, const RtfMdLstmCudaPlan* plan,
                                     void* workspace, void* stream);
}
