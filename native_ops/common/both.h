// RTF_BOTH marks a function for the CPU that GPU kernels call too.
#pragma once

#if defined(__CUDACC__)
#define RTF_BOTH __host__ __device__
#else
#define RTF_BOTH
#endif
