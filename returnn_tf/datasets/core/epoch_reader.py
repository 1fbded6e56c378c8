"""What all epochs of datasets have: sequences by position, and those that are broken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

from numpy.typing import NDArray

from returnn_tf.config import DataError
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.logging.log import log

_MOST_LISTED = 100  # broken sequences


#: A sequence or a part of it: its position in the order of the epoch; by data key, as tuples in the order of the
#: counted keys, its first frame (negative: that many zero frames first, of the context) and the frame after its last
#: one (beyond the sequence: zero frames at the end).
Slice = tuple[int, tuple[int, ...], tuple[int, ...]]


class Block(NamedTuple):
    """Several sequences of an epoch.

    :param indices: positions in the corpus
    :param data: key -> one array for each sequence
    """

    indices: list[int]
    tags: list[str]
    data: dict[str, list[NDArray[Any]]]


def place_of(dataset: Any, tag: str, position: int, epoch: int, file: str = "") -> str:
    """Return the dataset and sequence for messages."""
    where = ", file %r" % file if file else ""
    return "dataset %r%s, sequence %r (position %d of epoch %d)" % (dataset.name, where, tag, position, epoch)


class EpochReader:
    """The sequences of one epoch by position; also what a user's chunking function receives, or a view of it.

    Positions are asked for in ascending order by and large; what `release` has dropped is not asked for again.

    :param dataset: ``datasets.base.Dataset``
    :param epoch: number, from 1
    :param keys: the data keys to read
    """

    def __init__(self, dataset: Any, epoch: int, keys: list[str]):
        self.dataset = dataset
        self.epoch = epoch
        self.keys = keys
        #: what was wrong with the sequences that are left out, by position; see the option ``skip_broken_seqs``
        self.broken: dict[int, str] = {}
        self._kept: dict[int, Example] = {}

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences in this epoch; None: endless, or not known yet."""
        raise NotImplementedError("%s.num_seqs" % type(self).__name__)

    @property
    def specs(self) -> dict[str, DataSpec]:
        """Return the format of each data key."""
        specs: dict[str, DataSpec] = self.dataset.data_specs
        return specs

    def has(self, position: int) -> bool:
        """Return whether there is a sequence at this position."""
        raise NotImplementedError("%s.has" % type(self).__name__)

    def index(self, position: int) -> int:
        """Return the corpus position of the sequence at this position of the epoch."""
        raise NotImplementedError("%s.index" % type(self).__name__)

    def tag(self, position: int) -> str:
        """Return the tag of the sequence at this position."""
        raise NotImplementedError("%s.tag" % type(self).__name__)

    def lengths(self, position: int) -> dict[str, int]:
        """Return the number of frames by key."""
        return self.sequence(position).lengths

    def sequence(self, position: int) -> Example:
        """Return the sequence at this position.

        :raises DataError: naming dataset and tag, whatever went wrong while reading
        """
        raise NotImplementedError("%s.sequence" % type(self).__name__)

    def is_usable(self, position: int) -> bool:
        """Return whether a sequence can be read, as far as ``skip_broken_seqs`` requires to know; it is kept then."""
        if not self.dataset.opts.skip_broken_seqs:
            return True
        if position not in self.broken:
            try:
                self.sequence(position)
                return True
            except DataError as exc:
                self.broken[position] = str(exc) if len(self.broken) < _MOST_LISTED else ""
        return False

    def report_broken(self, num_used: int) -> None:
        """Log which sequences were left out; called at the end of the epoch.

        :param num_used: number of others
        :raises DataError: all of them were
        """
        if not self.broken:
            return
        reasons = [text for text in self.broken.values() if text]
        if not num_used:
            raise DataError(
                "%s: none of the %d sequences of epoch %d can be read; the first error is: %s"
                % (self.dataset.described, len(self.broken), self.epoch, reasons[0])
            )
        more = len(self.broken) - len(reasons)
        log.warn(
            "%s, epoch %d: %d sequences could not be read and were left out:%s%s"
            % (
                self.dataset.described,
                self.epoch,
                len(self.broken),
                "".join("\n  " + text for text in reasons),
                "\n  and %d others" % more if more else "",
            )
        )

    def whole_slices(self, keys: Sequence[str]) -> Iterator[Slice]:
        """Yield each usable sequence as a slice, with the number of its frames for these keys as the end."""
        begins = (0,) * len(keys)
        position = 0
        while self.has(position):
            if self.is_usable(position):
                lengths = self.lengths(position)
                yield position, begins, tuple([lengths[key] for key in keys])
            position += 1

    def block(self, positions: Sequence[int], keys: Sequence[str]) -> Block:
        """Return the sequences at these positions, which ascend.

        :param keys: the data keys that are needed
        """
        found = {position: self.sequence(position) for position in positions}
        sequences = [found[position] for position in positions]
        return Block(
            [sequence.index for sequence in sequences],
            [sequence.tag for sequence in sequences],
            {key: [sequence.data[key] for sequence in sequences] for key in keys},
        )

    def sequences(self, position: int) -> tuple[int, Iterable[Example]]:
        """Return the usable sequence at this position and those read together with it, and the position after them."""
        return position + 1, (self.sequence(position),)

    def complete(self, position: int) -> Optional[float]:
        """Return the fraction of the epoch that is done after the sequence at this position, None if unknown."""
        return None if self.num_seqs is None else (position + 1) / self.num_seqs

    def file(self, position: int) -> str:
        """Return the file of the sequence at this position; empty if there is none."""
        return ""

    def place(self, position: int, *, with_file: bool = False) -> str:
        """Return the dataset and tag for messages; also the file if requested and if there is one."""
        file = self.file(position) if with_file else ""
        return place_of(self.dataset, self.tag(position), position, self.epoch, file)

    def release(self, position: int) -> None:
        """Drop the sequences before this position."""
        for old in [kept for kept in self._kept if kept < position]:
            del self._kept[old]

    def close(self) -> None:
        """Free what reading needs; called once at the end of the epoch, also if it is left early."""
