// Products of small tiles on the tensor cores, and asynchronous copies from global to shared memory.
//
// Fragments are laid out in registers as the PTX manual defines ("Matrix Fragments for mma"). With g = lane / 4 and t =
// lane % 4:
//   d[0..3]               D[g][2t], D[g][2t + 1], D[g + 8][2t], D[g + 8][2t + 1]   (16 x 8, float)
//   m16n8k8   a[0..3]     A[g][t], A[g + 8][t], A[g][t + 4], A[g + 8][t + 4]   (16 x 8, tf32)
//             b[0..1]     B[t][g], B[t + 4][g]   (8 x 8)
//   m16n8k16  a[0..3]     A[g][2t..], A[g + 8][2t..], A[g][2t + 8..], A[g + 8][2t + 8..], two per register (16 x 16)
//             b[0..1]     B[2t..][g], B[2t + 8..][g], two rows per register, the first one in the low half (16 x 8)
//   m16n8k8   a[0..1]     A[g][2t..], A[g + 8][2t..], two per register (16 x 8, bf16)
//             b           B[2t..][g], two rows, the first one in the low half (8 x 8)
#pragma once

#include "device.h"

namespace rtf {

#if !RTF_CUDA_EMULATION

// A float as the tensor cores take it, rounded to 10 bits of mantissa (the hardware would truncate).
__device__ __forceinline__ uint32_t to_tf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

#define RTF_MMA(NAME, SHAPE_AND_TYPES)                                                                        \
  /* d += a b */                                                                                              \
  __device__ __forceinline__ void NAME(float d[4], const uint32_t a[4], const uint32_t b[2]) {                \
    asm volatile("mma.sync.aligned." SHAPE_AND_TYPES " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                         \
  }
RTF_MMA(mma_m16n8k8_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
RTF_MMA(mma_m16n8k16_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
RTF_MMA(mma_m16n8k16_f16, "m16n8k16.row.col.f32.f16.f16.f32")
#undef RTF_MMA

// d += a b
__device__ __forceinline__ void mma_m16n8k8_bf16(float d[4], const uint32_t a[2], uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(b));
}

// Starts an asynchronous copy of 16 bytes, bypassing L1. Both addresses are 16-byte aligned. bytes: how many are read
// from global memory; the rest of the 16 becomes 0 (with 0 bytes nothing is read, but the address has to be valid).
__device__ __forceinline__ void cp_async16(void* shared, const void* global, int bytes = 16) {
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
}

// Commits the copies that this thread started since the last call as a group.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N groups of this thread are pending. Other threads see the copies after a barrier.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif

}  // namespace rtf
