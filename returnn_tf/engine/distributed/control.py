"""The flags summed with every reduction: who has data left, who requests a pause, and the step number."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Optional

#: Entries of the vector that is summed over the ranks.
SIZE = 5
_HASHES = 1 << 16  # squares of their sums over a thousand ranks are exact in float64


@dataclass
class Control:
    """Flags of this rank for its next step (`own`, `more`, `wants_pause`), and the common ones of the last step.

    The reader of the batches sets `own` and `more`, see `joined_batches`.
    """

    own: bool = True  # the batch is this rank's own; False: it has none left and joins with weight zero
    more: bool = False  # this rank has a further batch
    wants_pause: Optional[Callable[[], bool]] = None  # asked at each step: whether to save or end after it
    active: int = 1  # ranks with an own batch in the last step
    any_more: bool = False  # at least one rank has a further batch
    any_pause: bool = False  # at least one rank requests it: all pause after this step

    def pack(self, *position: float) -> list[float]:
        """Return the entries of this rank for the sum.

        :param position: step and rate, or the number of synchronisations: must be the same on all ranks
        """
        pause = self.wants_pause is not None and self.wants_pause()
        number = float(zlib.crc32(repr(position).encode("ascii")) % _HASHES)
        return [float(self.own), float(self.more), float(pause), number, number * number]

    def unpack(self, sums: Sequence[float], size: int) -> bool:
        """Set the common flags from the sums over all ranks; compare the positions.

        :param sums: [`SIZE`]
        :param size: number of ranks
        :return: whether all ranks were at the same position
        """
        own, more, pause, number, square = (float(value) for value in sums)
        self.active, self.any_more, self.any_pause = round(own), more > 0.5, pause > 0.5
        return number * number == size * square

    def unpack_alone(self) -> None:
        """Set the common flags in a world of one process."""
        self.active, self.any_more = 1, self.more
        self.any_pause = self.wants_pause is not None and self.wants_pause()

    def reset(self) -> None:
        """Reset the flags at the start of a new pass."""
        self.own, self.more, self.active, self.any_more, self.any_pause = True, False, 1, False, False
