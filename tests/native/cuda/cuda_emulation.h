// CUDA on the CPU, for tests: what native_ops/common/cuda/device.h takes from here when RTF_CUDA_EMULATION is set.
//
// Every thread of CUDA is a fiber with a stack of its own. A fiber runs until it waits for others (a barrier, a
// shuffle, a product on the tensor cores, a spinning loop); who goes on is drawn by chance from RTF_EMULATION_SEED. So
// a missing barrier shows as a wrong number, with -fsanitize=address an access out of bounds shows, and where all wait
// for each other the launch fails and tells where. With -fsanitize=thread accesses show that nothing orders, also where
// the numbers are right (races.h). RTF_EMULATION_SMS says how many multiprocessors there are (default 4; 0: no device),
// RTF_EMULATION_SHARED how much shared memory a block can have (default 227 KiB).
//
// Memory that a kernel has to write first is full of NaN (0xff). Atomics are atomic as only one fiber runs at a time.
// What is not here: the caches (a plain load after a barrier is always fresh), registers per thread, time.
#pragma once

#include "emulation/alignment.h"
#include "emulation/machine.h"
#include "emulation/runtime.h"
#include "emulation/tensor_cores.h"
#include "emulation/types.h"
#include "emulation/warp.h"
