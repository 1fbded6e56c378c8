"""Parallel texts as HDF files of label indices, written line by line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.datasets.hdf.temporary import Output, not_written

INPUTS = "inputs"


class ParallelTextWriter:
    """Writes labels by stream; the file gets its name on `close`. Use it as a context manager.

    :param filename: an existing file is replaced when all is written
    :param labels: name of the stream -> names of its labels; the first one is the input, others are targets
    :param compression: of the streams, e.g. "gzip"
    :param buffered: labels of all streams that are kept before they are written
    """

    def __init__(
        self, filename: str, labels: Mapping[str, Sequence[str]], *, compression: Optional[str], buffered: int
    ) -> None:
        self.filename = filename
        self.num_lines = 0
        self._labels = dict(labels)
        self._buffered = buffered
        self._pending: dict[str, list[int]] = {name: [] for name in labels}
        self._lengths: list[list[int]] = []
        self._names = [INPUTS, *sorted(name for name in labels if name != INPUTS)]
        try:
            self._output = Output(filename)
        except OSError as exc:
            raise not_written(filename, exc) from exc
        assert self._output.file is not None
        self._file = self._output.file
        with self._output.reporting():
            for name in self._names:
                self._file.create_dataset(
                    _path(name), (0,), "int32", maxshape=(None,), chunks=(1 << 14,), compression=compression
                )

    def add(self, line: Mapping[str, Sequence[int]]) -> None:
        """Append a line.

        :param line: name of the stream -> labels
        """
        for name, labels in line.items():
            self._pending[name].extend(labels)
        self._lengths.append([len(line[name]) for name in self._names])
        self.num_lines += 1
        if sum(map(len, self._pending.values())) >= self._buffered:
            self._flush()

    def _flush(self) -> None:
        with self._output.reporting():
            for name, labels in self._pending.items():
                dataset = self._file[_path(name)]
                start = dataset.shape[0]
                dataset.resize(start + len(labels), axis=0)
                dataset[start:] = np.array(labels, np.int32)
                labels.clear()

    def close(self) -> None:
        """Complete the file.

        :raises DataError: it can't be written
        """
        self._flush()
        file = self._file
        with self._output.reporting():
            file.attrs["inputPattSize"] = len(self._labels[INPUTS])
            file.attrs["numLabels"] = len(self._labels["classes"])
            file.create_dataset("seqLengths", data=np.array(self._lengths, np.int32))
            tags = [b"line-%d" % number for number in range(self.num_lines)]
            file.create_dataset("seqTags", data=np.array(tags))
            for name in self._names[1:]:
                file.require_group("targets/size").attrs[name] = [len(self._labels[name]), 1]
                file.create_dataset("targets/labels/" + name, data=fixed_strings(self._labels[name]))
        self._output.complete()
        self._output.publish()

    def __enter__(self) -> ParallelTextWriter:
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        try:
            if exc_type is None:
                self.close()
        finally:
            self._output.abort()


def _path(name: str) -> str:
    return INPUTS if name == INPUTS else "targets/data/" + name


def fixed_strings(texts: Iterable[str]) -> NDArray[Any]:
    """Return texts in UTF-8 with a fixed length, and room for a null byte."""
    encoded = [text.encode("utf8") for text in texts]
    return np.array(encoded, "S%d" % (max(map(len, encoded), default=0) + 1))
