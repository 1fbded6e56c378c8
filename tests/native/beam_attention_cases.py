"""Cases of attention in a search, for the kernels of CPUs and of GPUs."""

from __future__ import annotations

import itertools

#: Steps before the last one: more than the first allocation has room for.
STEPS = 36
#: Of histories in place: entries, heads, sizes of a key and of a value.
IN_PLACE = [(1, 1, 1, 1), (26, 2, 16, 5), (13, 3, 33, 32), (32, 3, 130, 71)]
#: Of frames that are stored once for each of 3 sequences.
FRAMES = 7
#: Hypotheses of a sequence and heads, with sizes of a key and of a value.
ONCE = [
    (*counts, *sizes)
    for counts, sizes in itertools.product([(1, 8), (2, 1), (5, 3), (12, 2)], [(17, 64), (64, 130), (1, 1)])
]
#: Lengths of the sequences, which all hypotheses of one have; "by hypothesis": any for each, also too large ones.
LENGTHS = [None, [7, 0, 4], "by hypothesis"]
