// The states of a chain that are worth visiting in a frame, on the CPU and on the GPU.
#pragma once

#include <cstdint>

#include "../common/both.h"

namespace rtf {

// The states from `first` on, before `end`; none if that is not after it.
struct LiveStates {
  int32_t first, end;

  RTF_BOTH bool has(int32_t state) const { return state >= first && state < end; }
};

// A path through a chain starts in one of its first states, advances by at most `stride` states per frame, and ends in
// one of its last states. In each frame, the states that it can be in are therefore a window: the start reaches them by
// then, and they reach the end in the frames that remain.
//
// A walk over the frames visits the states of each window only, and clears nothing between them: no path enters a
// window from states that the walk has left behind, and those ahead still have the value from before the first frame.
struct LiveChain {
  int32_t states, frames;
  int32_t ends;  // in how many of the first states a path may start, and in how many of the last ones it may end
  int32_t stride;

  RTF_BOTH LiveStates at(int32_t t) const {
    const int32_t reached = ends + stride * t, first = states - ends - stride * (frames - 1 - t);
    return {first > 0 ? first : 0, reached < states ? reached : states};
  }
};

}  // namespace rtf
