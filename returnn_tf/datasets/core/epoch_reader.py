"""What all epochs of datasets have: sequences by position, and those that are broken."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config import DataError
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.datasets.core.together import Together
from returnn_tf.logging.log import log

_MOST_LISTED = 100  # broken sequences


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

    @property
    def together(self) -> Optional[Together]:
        """Return what reads several sequences at once, or None."""
        return None

    def complete(self, position: int) -> Optional[float]:
        """Return the fraction of the epoch that is done after the sequence at this position, None if unknown."""
        return None if self.num_seqs is None else (position + 1) / self.num_seqs

    def file(self, position: int) -> str:
        """Return the file of the sequence at this position; empty if there is none."""
        return ""

    def place(self, position: int, *, with_file: bool = False) -> str:
        """Return the dataset and tag for messages; also the file if requested and if there is one."""
        file = self.file(position) if with_file else ""
        return "dataset %r%s, sequence %r (position %d of epoch %d)" % (
            self.dataset.name,
            ", file %r" % file if file else "",
            self.tag(position),
            position,
            self.epoch,
        )

    def release(self, position: int) -> None:
        """Drop the sequences before this position."""
        for old in [kept for kept in self._kept if kept < position]:
            del self._kept[old]

    def close(self) -> None:
        """Free what reading needs; called once at the end of the epoch, also if it is left early."""
