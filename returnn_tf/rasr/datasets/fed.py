"""A dataset that RASR feeds while this program runs inside it."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, RasrDataError
from returnn_tf.config.options import option
from returnn_tf.datasets.core import seq_order as orders
from returnn_tf.datasets.core.data_spec import DataSpec, Example
from returnn_tf.datasets.core.stream import StreamDataset
from returnn_tf.rasr.datasets.targets import SentOptions, Targets, features_of

MAX_WAITING = 200  # sequences; then RASR has to wait


class FedDataset(StreamDataset):
    """Sequences that another thread feeds, epoch by epoch as they are asked for.

    The other thread gets the segments of an epoch by `segments`, and calls `feed` for each. The order is that of
    ``seq_ordering`` over the segments of RASR, whose lengths are not known.
    """

    makes_order = True

    @dataclass
    class Options(SentOptions):
        suppress_load_seqs_print: bool = option(False, help="log less", inert="loading is not logged anyway")
        input_dim: int = option(help="features")
        output_dim: int = option(0, help="number of classes, 0 = no alignment")

    def setup(self) -> None:
        """Prepare the exchange between the threads."""
        self._targets = Targets(self.opts, owner=self._owner())
        self._changed = threading.Condition()
        self._waiting: collections.deque[Optional[Example]] = collections.deque()  # None: the end of the epoch
        self._num_requests = 0
        self._open: Optional[tuple[int, int]] = None  # (number of the request, epoch) that is read
        self._fed = 0  # the request whose segments RASR gets
        self._finished = False

    def __reduce__(self) -> Any:
        raise TypeError("a dataset that is fed by RASR belongs to its process")

    def make_specs(self) -> dict[str, DataSpec]:
        """Return the format of features and alignment."""
        dim = self.opts.input_dim
        specs = {"data": DataSpec(dim, 2, "float32", (dim,))}
        if self.opts.output_dim > 0:
            specs["classes"] = DataSpec(self.opts.output_dim, 1, "uint32")
        for key, vocabulary in self._targets.vocabularies.items():
            specs[key] = self._targets.spec(key, np.zeros(0, np.int32), len(vocabulary.labels))
        return specs

    # ---- the side that reads

    def stream(self, epoch: int, **how: Any) -> Iterator[Example]:
        """Ask for an epoch, and yield what is fed."""
        self._targets.set_random_seed(self.epoch_seed(epoch))
        with self._changed:
            self._waiting.clear()
            self._num_requests += 1
            request = self._open = (self._num_requests, epoch)
            self._changed.notify_all()
        try:
            for index, sequence in enumerate(iter(self._next, None)):
                yield dataclasses.replace(sequence, index=index, position=index)
        finally:
            with self._changed:
                if self._open is request:
                    self._open = None
                self._changed.notify_all()

    def _next(self) -> Optional[Example]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._finished)
            if not self._waiting:
                raise RasrDataError("RASR has ended in the middle of an epoch")
            sequence = self._waiting.popleft()
            self._changed.notify_all()
            return sequence

    # ---- the side of RASR

    def order(self, epoch: int, names: Sequence[str]) -> list[str]:
        """Return the segments of an epoch in their order.

        :raises ConfigError: the order needs lengths
        """
        opts = self.opts
        ordering = self.ordering(epoch)
        if ordering.kind in ("sorted", "sorted_reverse"):
            self.needed_lengths()  # which raises the error
        seed = self.epoch_seed(epoch, nth=ordering.nth)
        order = orders.order_sequences(ordering, len(names), self.needed_lengths, seed)
        if opts.partition_epoch > 1:
            part = (max(epoch, 1) - 1) % opts.partition_epoch
            order = orders.partition(order, num_parts=opts.partition_epoch, part=part)
        return [names[int(index)] for index in order]

    def segments(self, names: Sequence[str]) -> Iterator[str]:
        """Yield the segments of all epochs that are read; ends when no further one will be."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._finished or (self._open and self._open[0] > self._fed))
                if self._finished or self._open is None:
                    return
                self._fed, epoch = self._open
            for name in self.order(epoch, names):
                if not self._is_read():
                    break
                yield name  # RASR feeds it before it asks for the next one
            with self._changed:
                if self._is_read():
                    self._waiting.append(None)
                    self._changed.notify_all()

    def _is_read(self) -> bool:
        """Return whether the epoch that RASR is feeding is still being read."""
        return self._open is not None and self._open[0] == self._fed and not self._finished

    def feed(self, tag: str, features: Any, targets: Mapping[str, Any]) -> None:
        """Add a sequence to the epoch that is read; waits while too many others wait.

        :param features: [dim, time]
        :raises DataError: they do not fit the options
        """
        data = self.data_of(tag, features, targets)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_read() or len(self._waiting) < MAX_WAITING)
            if self._is_read():  # else the epoch was left early
                self._waiting.append(Example(index=0, tag=tag, data=data))
                self._changed.notify_all()

    def data_of(self, tag: str, features: Any, targets: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return the data of a sequence by key; "data" is [time, dim]. DataError if it does not fit the options."""
        try:
            data = {"data": features_of(features, self.opts.input_dim, self.opts.input_stddev)}
            if targets:
                data.update(self._targets.arrays(targets, len(data["data"])))
        except DataError as exc:
            raise RasrDataError("sequence %r: %s" % (tag, exc)) from None
        return data

    def finish(self) -> None:
        """Mark the end: no further epoch is read or fed."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()
