"""Layers that pass their values on after each step of a task, e.g. to a file, together with the names of the sequences.

A layer with ``has_sink`` emits the values by `EmitContext.set_sink_values` and opens its `Sink` when the first batch is
done. Tasks own the open sinks by `OpenSinks`, a part of the network: all are closed when the task is done with the
network, or discarded if it fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Protocol

from returnn_tf.config.errors import DataError, DimError


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """A pass over a dataset.

    :param dataset: its name, e.g. "train" or "dev"
    :param epoch: of the model
    :param rank: of this process
    :param size: number of processes, each of which has a part of the sequences
    :param events: folder of the event files for TensorBoard, if there are any
    """

    dataset: str
    epoch: int
    rank: int = 0
    size: int = 1
    events: Optional[str] = None


class Sink(Protocol):
    """Receives the values of one layer."""

    #: The file that it writes.
    path: str

    def write(self, values: Mapping[str, Any], tags: Sequence[str]) -> None:
        """Add a batch.

        :param values: what the layer emitted, as arrays
        :param tags: names of the sequences
        """

    def close(self) -> None:
        """Complete the file."""

    def abort(self) -> None:
        """Discard what was written."""


class SinkLayer(Protocol):
    """What `OpenSinks` needs of a layer with ``has_sink``."""

    @property
    def sink_per_run(self) -> bool:
        """Return whether each pass over a dataset has a separate sink."""

    def check_sink(self, run: RunInfo) -> None:
        """Check before the first batch of a pass that the sink can be opened."""

    def open_sink(self, run: RunInfo) -> Sink:
        """Return a new sink, which creates its file with the first batch."""


class OpenSinks:
    """The sinks of the layers of a network. As a context manager: closes all at the end, or discards them on an error.

    :param layers: by path
    """

    def __init__(self, layers: Mapping[str, SinkLayer]) -> None:
        self._layers = dict(layers)
        self._open: dict[str, Sink] = {}
        self._run: Optional[RunInfo] = None

    def __bool__(self) -> bool:
        return bool(self._layers)

    @contextlib.contextmanager
    def run(self, run: RunInfo) -> Iterator[None]:
        """Take the values of a pass over a dataset within the context.

        :raises DataError: a file that a layer would write exists already
        """
        for path, layer in self._layers.items():
            if path not in self._open:
                layer.check_sink(run)
        self._run = run
        try:
            yield
        except BaseException:
            self._discard(self._per_run())
            raise
        finally:
            self._run = None
        self._close(self._per_run())

    def write(self, values: Mapping[str, Mapping[str, Any]], tags: Sequence[str]) -> None:
        """Pass on the values of a step; ``tags`` is empty if this process had no batch.

        :param values: path of the layer -> what it emitted
        :raises ConfigError: two layers write the same file
        :raises DataError: writing failed
        """
        if not tags:
            return
        for path, tensors in values.items():
            if path not in self._open:
                assert self._run is not None, "values of a step outside of a pass"
                self._open[path] = self._opened(path, self._run)
            self._open[path].write({name: tensor.numpy() for name, tensor in tensors.items()}, tags)

    def _opened(self, path: str, run: RunInfo) -> Sink:
        sink = self._layers[path].open_sink(run)
        for other, there in self._open.items():
            if sink.path and os.path.abspath(there.path) == os.path.abspath(sink.path):
                raise DimError("The layers %r and %r write the same file %r." % (other, path, sink.path))
        return sink

    def of_all_passes(self) -> list[str]:
        """Return the layers with one sink for all passes over datasets."""
        return [path for path, layer in self._layers.items() if not layer.sink_per_run]

    def _per_run(self) -> list[str]:
        return [path for path in self._open if self._layers[path].sink_per_run]

    def close(self) -> None:
        """Complete all files.

        :raises DataError: one of them can't be written
        """
        self._close(list(self._open))

    def abort(self) -> None:
        """Discard all files."""
        self._discard(list(self._open))

    def _close(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self._open.pop(path).close()
            except DataError:
                self.abort()
                raise

    def _discard(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._open.pop(path).abort()

    def __enter__(self) -> OpenSinks:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
