"""Epochs whose sequences take their data from several inner epochs, position by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.config import DataError
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.epoch import Epoch
from returnn_tf.datasets.core.epoch_reader import EpochReader


class JoinedEpoch(Epoch):
    """The sequences of several inner epochs at the same position, as one.

    :param dataset: the outer dataset
    :param order: its corpus indices in the order of reading
    :param readers: name of an inner dataset -> its epoch in this order; closed with this one
    :param wanted: name -> tags in this order
    :param data_map: data key -> (name, key of the inner dataset)
    """

    def __init__(
        self,
        dataset: Any,
        epoch: int,
        order: NDArray[Any],
        keys: list[str],
        readers: Mapping[str, EpochReader],
        wanted: Mapping[str, Optional[Sequence[str]]],
        data_map: Mapping[str, tuple[str, str]],
    ):
        super().__init__(dataset, epoch, order, keys)
        self._readers = readers
        self._wanted = wanted
        self._data_map = data_map

    def file(self, position: int) -> str:
        """Return the files of the sequence at this position; empty if there is none."""
        files = {reader.file(position): None for reader in self._readers.values() if reader.has(position)}
        return ", ".join(file for file in files if file)

    def lengths(self, position: int) -> dict[str, int]:
        """Return the number of frames by key; reads what the inner datasets cannot know otherwise."""
        inner: dict[str, dict[str, int]] = {}
        for name, reader in self._readers.items():
            self._check(name, position)
            inner[name] = reader.lengths(position)
        return {key: inner[name][subkey] for key, (name, subkey) in self._data_map.items() if key in self.keys}

    def _check(self, name: str, position: int) -> None:
        """Check that an inner dataset has the wanted sequence at this position."""
        reader, tags = self._readers[name], self._wanted[name]
        if not reader.has(position):
            raise DataError(
                "%s: dataset %r ends after %d sequences%s"
                % (self.place(position), name, position, "" if tags is None else "; %r is missing" % tags[position])
            )
        if tags is not None and reader.tag(position) != tags[position]:
            raise DataError(
                "%s: dataset %r has the sequence %r here, but should have %r; is it of another corpus?"
                % (self.place(position), name, reader.tag(position), tags[position])
            )
        if tags is None and reader.index(position) != self.index(position):
            raise DataError(
                "%s: dataset %r has the sequence %r here, since it leaves this one out; the others would not fit it"
                % (self.place(position), name, reader.tag(position))
            )

    def _read(self, position: int) -> Example:
        sequences = {}
        for name, reader in self._readers.items():
            self._check(name, position)
            sequences[name] = reader.sequence(position)
        data = {}
        for key in self.keys:
            name, subkey = self._data_map[key]
            data[key] = sequences[name].data[subkey]
        return self._made_of(position, data)

    def release(self, position: int) -> None:
        """Drop the sequences before this position."""
        super().release(position)
        for reader in self._readers.values():
            reader.release(position)

    def close(self) -> None:
        """Close the inner epochs."""
        for reader in self._readers.values():
            reader.close()
