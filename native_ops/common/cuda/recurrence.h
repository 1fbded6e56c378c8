// What the C interfaces of all recurrences on the GPU have in common.
#pragma once

extern "C" {

// The number format of all arrays of a call. With RTF_FLOAT_TF32 the product with the recurrent weights has the
// precision of TF32 (10 bits of mantissa), which is faster; with RTF_FLOAT that of float.
typedef enum RtfNumbers { RTF_FLOAT = 0, RTF_FLOAT_TF32 = 1, RTF_BFLOAT16 = 2, RTF_FLOAT16 = 3 } RtfNumbers;
}
