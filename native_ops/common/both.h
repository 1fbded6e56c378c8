// RTF_BOTH: before a function for the CPU and for kernels on a GPU.
#pragma once

#if defined(__CUDACC__)
#define RTF_BOTH __host__ __device__
#else
#define RTF_BOTH
#endif
