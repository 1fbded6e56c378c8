"""What the ranks tell each other with every reduction: who has data left, who wants a pause, and which step it is."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence

#: Entries of the vector that is summed over the ranks.
SIZE = 5
_HASHES = 1 << 16  # squares of their sums over a thousand ranks are exact in float64


@dataclass
class Control:
    """What this rank says with its next step (`own`, `more`, the answer of `wants_pause`), and what all said last.

    Whoever reads the batches sets `own` and `more`, see `returnn_tf.engine.distributed.turns`.
    """

    own: bool = True  # the batch is this rank's own; False: it has none left and takes part with weight zero
    more: bool = False  # this rank has a further batch
    wants_pause: Optional[Callable[[], bool]] = None  # asked at each step: whether to save or end after it
    active: int = 1  # ranks with an own batch in the last step
    any_more: bool = False  # some rank has a further batch
    any_pause: bool = False  # some rank wants it: all pause after this step

    def say(self, *position: float) -> List[float]:
        """The entries of this rank.

        :param position: step and rate, or the number of synchronisations: must be the same on all ranks
        """
        pause = self.wants_pause is not None and self.wants_pause()
        number = float(zlib.crc32(repr(position).encode("ascii")) % _HASHES)
        return [float(self.own), float(self.more), float(pause), number, number * number]

    def hear(self, said: Sequence[float], size: int) -> bool:
        """Takes in the sums over all ranks.

        :param said: [`SIZE`]
        :param size: number of ranks
        :return: whether all were at the same position
        """
        own, more, pause, number, square = (float(value) for value in said)
        self.active, self.any_more, self.any_pause = int(round(own)), more > 0.5, pause > 0.5
        return number * number == size * square

    def alone(self) -> None:
        """The same for a world of one process, which has nobody to ask."""
        self.active, self.any_more = 1, self.more
        self.any_pause = self.wants_pause is not None and self.wants_pause()

    def reset(self) -> None:
        """A new pass begins: nobody has said anything."""
        self.own, self.more, self.active, self.any_more, self.any_pause = True, False, 1, False, False
