"""The sequences that one run of RASR over its corpus sends, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from returnn_tf.config import DataError
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.rasr.datasets.targets import SentOptions, Targets, features_of
from returnn_tf.rasr.processes.process import RasrProcess


class RunReader:
    """Reads what a run of RASR sends to ``ExternSprintDataset``: its dims, then the sequences.

    :param run: the process
    :param targets: how its targets become arrays
    :param opts: of the dataset
    :param sizes: (input dim, output dim) of earlier runs, which this one must have too; None: it is the first
    :param seq_list: the tags that RASR has to send, in this order; None: those of its own order
    """

    def __init__(
        self,
        run: RasrProcess,
        targets: Targets,
        *,
        opts: SentOptions,
        sizes: Optional[tuple[int, int]],
        seq_list: Optional[Sequence[str]],
    ) -> None:
        self._run = run
        self._targets = targets
        self._opts = opts
        self.sizes = sizes
        self._seq_list = seq_list
        self._message: Any = None  # read, but not used yet

    def begin(self) -> None:
        """Read the dims, after which they are in ``sizes``, and the first sequence.

        :raises DataError: RASR sends something else, other dims than before, or no sequence
        """
        message = self._run.receive("its dims")
        if message[0] == "init":
            dims = message[1] if len(message) == 2 else None
            if not isinstance(dims, tuple) or len(dims) < 2 or not all(isinstance(dim, int) for dim in dims[:2]):
                raise self._run.strange("the dims are %.100r" % (message[1:],))
            if self.sizes is not None and dims[:2] != self.sizes:
                raise self._run.error(
                    "RASR now has %d features and %d classes, but %d and %d when it was started before. Check its "
                    "configuration." % (*dims[:2], *self.sizes)
                )
            self.sizes = dims[:2]
            message = self._run.receive("the first sequence")
        elif message[0] != "exit":
            raise self._run.strange("the first message is %.100r" % (message,))
        if message[0] == "exit":
            self._end()
            raise self._run.error(
                "RASR ended without any sequence. Check its corpus, whitelist, and whether partition_epoch=%d is too "
                "large." % self._opts.partition_epoch
            )
        self._message = message

    def sequences(self) -> Iterator[Example]:
        """Yield the sequences, after `begin`; in the end, wait until RASR has ended.

        :raises DataError: a sequence is not as it should be, one of the list is missing, or RASR fails
        """
        message, seq_list, index = self._message, self._seq_list, 0
        while message[0] != "exit":
            sequence = self._sequence(message, index)
            if seq_list is not None:
                self._check_tag(sequence.tag, seq_list, index)
                sequence = dataclasses.replace(sequence, complete=(index + 1) / len(seq_list))
            yield sequence
            index += 1
            message = self._run.receive("the end, after sequence %r" % sequence.tag)
        if seq_list is not None and index < len(seq_list):
            raise self._run.error(
                "RASR ended after %d of the %d sequences of the list; the next one is %r. Is it in the corpus of RASR?"
                % (index, len(seq_list), seq_list[index])
            )
        self._end()

    def _check_tag(self, tag: str, seq_list: Sequence[str], index: int) -> None:
        expected = seq_list[index] if index < len(seq_list) else "(the end)"
        if tag != expected:
            raise DataError(
                "RASR sends the sequence %r, but number %d of the list is %r. It must have all of them, and keep their "
                "order: --*.segment-order-sort-by-time-length=false" % (tag, index, expected)
            )

    def _sequence(self, message: Any, index: int) -> Example:
        assert self.sizes is not None
        try:
            kind, (tag, features, targets) = message
            if kind != "data" or not isinstance(tag, str) or not isinstance(targets, dict):
                raise ValueError
        except (TypeError, ValueError):
            raise self._run.strange("a message is %.100r" % (message,)) from None
        try:
            data = {} if features is None else {"data": features_of(features, self.sizes[0], self._opts.input_stddev)}
            data.update(self._targets.arrays(targets, len(data["data"]) if data else None))
        except DataError as exc:
            raise DataError("sequence %r: %s" % (tag, exc)) from None
        return Example(index=index, tag=tag, data=data, position=index)

    def _end(self) -> None:
        """Wait until RASR has ended; DataError if it failed."""
        code = self._run.wait()
        if code is None:
            raise self._run.error("RASR does not end after its last sequence.")
        if code:
            raise self._run.error("RASR failed after its last sequence, with %s." % self._run.status_text())
