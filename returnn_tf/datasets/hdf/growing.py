"""The streams of an HDF file that is being written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import h5py
import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import DataError
from returnn_tf.datasets.core.base import LABEL_PLACEHOLDER

_BYTES_TO_FLUSH = 1 << 24  # so that a full disk is detected early, and by an error that can be caught


class GrowingStreams:
    """Appends to the streams of an open file, and creates them with the first sequence.

    :param file: open for writing
    :param name: of the file, for messages
    :param dim: of the main data
    :param extra_type: key -> (dim, ndim, dtype) of further data, where it is declared
    :param extra_labels: key -> names of the classes of further data
    """

    def __init__(
        self,
        file: h5py.File,
        name: str,
        *,
        dim: Optional[int],
        extra_type: Mapping[str, tuple[Optional[int], int, str]],
        extra_labels: Mapping[str, Sequence[str]],
    ):
        self._file = file
        self._name = name
        self.dim = dim
        self._extra_type = extra_type
        self._extra_labels = extra_labels
        # kept open: the library reports no error if it can't flush a stream on closing
        self._streams: dict[str, h5py.Dataset] = {}
        self._unflushed = 0  # bytes

    def flush(self) -> None:
        """Write to the disk what was appended, if it is enough."""
        if self._unflushed >= _BYTES_TO_FLUSH:
            self._file.flush()
            self._unflushed = 0

    def append(self, path: str, values: list[NDArray[Any]], key: Optional[str]) -> list[int]:
        """Append sequences to one stream, and return their lengths."""
        if path not in self._file:
            self._create(path, values[0], key)
        dataset = self._stream(path)
        text = h5py.check_string_dtype(dataset.dtype) is not None
        for value in values:
            if value.shape[1:] != dataset.shape[1:]:
                raise DataError(
                    "HDFWriter %r: frames of shape %s for /%s, but it has %s"
                    % (self._name, value.shape[1:], path, dataset.shape[1:])
                )
        block = np.concatenate([value.astype(object) if text else value for value in values], axis=0)
        start = dataset.shape[0]
        dataset.resize(start + len(block), axis=0)
        dataset[start:] = block
        self._unflushed += block.nbytes
        return [len(value) for value in values]

    def _stream(self, path: str) -> h5py.Dataset:
        if path not in self._streams:
            self._streams[path] = self._file[path]
        return self._streams[path]

    def _create(self, path: str, value: NDArray[Any], key: Optional[str]) -> None:
        """Create an empty stream, with its metadata, in the format of its first value [time, ...]."""
        dim, ndim, dtype = self.dim, value.ndim, value.dtype
        if key is not None:
            dim, ndim, declared = self._extra_type.get(
                key, (None if value.ndim < 2 else value.shape[1], value.ndim, value.dtype)
            )
            dtype = np.dtype(declared) if declared != "string" else np.dtype(object)
        maxshape = (None,) + (value.shape[1:] if key is not None else (None,) * (value.ndim - 1))
        row = max(1, int(np.prod(value.shape[1:], dtype=np.int64))) * max(dtype.itemsize, 1)
        chunks = (max(1, min(1024, (1 << 18) // row)),) + tuple(max(n, 1) for n in value.shape[1:])
        self._streams[path] = self._file.create_dataset(
            path,
            shape=(0,) + value.shape[1:],
            maxshape=maxshape,
            chunks=chunks,
            dtype=h5py.string_dtype() if dtype.kind in "OSU" else dtype,
        )
        if key is not None:
            self._file.require_group("targets/size").attrs[key] = [dim or 1, ndim]
            names = [str(name) for name in self._extra_labels.get(key, [])]
            self.write_labels("targets/labels/" + key, names or None)

    def write_labels(self, path: str, names: Optional[list[str]]) -> None:
        """Write label names: ASCII with fixed length, others as UTF-8; None: placeholders.

        A name with a null character, as of byte 0, is nothing that HDF can hold; then there are placeholders.
        """
        if names is None or any("\0" in name for name in names):
            self._file.create_dataset(path, data=np.array([LABEL_PLACEHOLDER.encode()]))
        elif not names:
            self._file.create_dataset(path, shape=(0,), dtype="S5")
        elif all(name.isascii() for name in names):
            self._file.create_dataset(path, data=np.array([name.encode("ascii") for name in names]))
        else:
            self._file.create_dataset(path, data=np.array(names, object), dtype=h5py.string_dtype())

    def append_rows(self, columns: list[list[int]], tags: list[str]) -> None:
        """Append the lengths of sequences, a column for each stream, and their tags."""
        if "seqLengths" not in self._file:
            self._file.create_dataset(
                "seqLengths", shape=(0, len(columns)), maxshape=(None, None), chunks=(1024, len(columns)), dtype="int32"
            )
            self._file.create_dataset(
                "seqTags", shape=(0,), maxshape=(None,), chunks=(1024,), dtype=h5py.string_dtype()
            )
        for path, rows in (("seqLengths", np.array(columns, np.int32).T), ("seqTags", np.array(tags, object))):
            dataset = self._stream(path)
            start = dataset.shape[0]
            dataset.resize(start + len(rows), axis=0)
            dataset[start:] = rows
