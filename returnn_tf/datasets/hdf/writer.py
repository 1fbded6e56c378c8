"""HDFWriter: writes sequences to an HDF file which HDFDataset reads, batch by batch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import h5py
import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError, FileError
from returnn_tf.datasets.core.base import LABEL_PLACEHOLDER
from returnn_tf.datasets.hdf.temporary import Output, not_written

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
                raise FileDataError(
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


Lengths = Union[Sequence[int], NDArray[Any], Mapping[int, Any]]


class HDFWriter:
    """Writes to a temporary file next to the target, renamed to it when ``close`` succeeds.

    >>> from returnn_tf.datasets import HDFWriter
    >>> with HDFWriter("out.hdf", dim=4) as writer:   # doctest: +SKIP
    ...     writer.insert_batch(features, seq_lens, tags, extra={"score": scores})

    :param filename: must not exist yet, unless it is to be extended or replaced
    :param dim: feature dimension or number of classes of the main data
    :param labels: their names
    :param ndim: axes of the main data without batch; default 2 if ``dim`` is given, else 1
    :param extra_type: key -> (dim, ndim, dtype) of further data; undeclared keys are inferred from the first batch
    :param extend_existing_file: append to an existing file; it is replaced as a whole when all is written
    :param extra_labels: key -> names of the classes of further data
    :param replace: an existing file is replaced when all is written
    :raises DataError: the file exists, or the file to be extended does not
    """

    def __init__(
        self,
        filename: str,
        dim: Optional[int] = None,
        labels: Optional[Sequence[str]] = None,
        ndim: Optional[int] = None,
        extra_type: Optional[Mapping[str, tuple[Optional[int], int, str]]] = None,
        extend_existing_file: bool = False,
        extra_labels: Optional[Mapping[str, Sequence[str]]] = None,
        replace: bool = False,
    ):
        self.filename = filename
        self.dim = dim
        self.labels = list(labels or [])
        self.ndim = (2 if dim is not None else 1) if ndim is None else ndim
        self.num_seqs = 0
        self.num_timesteps = 0
        self._extend = extend_existing_file
        self._replace = replace
        self._extra_type = dict(extra_type or {})
        self._keys: Optional[list[str]] = None
        if self.labels and dim is not None and len(self.labels) != dim:
            raise FileError("HDFWriter: %d labels for dim %d" % (len(self.labels), dim))
        self._check_target()
        self._output = self._start_output()
        assert self._output.file is not None
        self._streams: Optional[GrowingStreams] = GrowingStreams(
            self._output.file, filename, dim=self.dim, extra_type=self._extra_type, extra_labels=extra_labels or {}
        )

    def _check_target(self) -> None:
        if os.path.exists(self.filename):
            if not (self._extend or self._replace):
                raise FileDataError("HDF file %r exists already; remove it or choose another name" % self.filename)
        elif self._extend:
            raise FileDataError("HDF file %r does not exist, so it cannot be extended" % self.filename)

    def _start_output(self) -> Output:
        try:
            output = Output(self.filename, self.filename if self._extend else None)
        except OSError as exc:
            raise not_written(self.filename, exc) from exc
        try:
            if self._extend:
                self._read_state(output.file)
            return output
        except BaseException:
            output.abort()
            raise

    def _read_state(self, file: h5py.File) -> None:
        """Read the layout of the file to be extended."""
        if "seqLengths" not in file or "inputs" not in file:
            raise FileDataError("HDF file %r was not made by HDFWriter, so it cannot be extended" % self.filename)
        self.num_seqs = int(file["seqLengths"].shape[0])
        self.num_timesteps = int(file["inputs"].shape[0])
        self._keys = sorted(file["targets/data"]) if "targets/data" in file else []
        if self.dim is None and file["inputs"].ndim > 1:
            self.dim = int(file["inputs"].shape[1])

    def insert_batch(
        self,
        inputs: Optional[NDArray[Any]],
        seq_len: Lengths,
        seq_tag: Sequence[str],
        extra: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Append a batch of sequences.

        :param inputs: [batch, time, ...], padded; or [batch, ...] with ``seq_len={}``; None in a file
            without main data
        :param seq_len: frames [batch] of the time axis, or {axis: frames [batch]} for several axes, counted from 0
            without batch. Several of them are joined to one time axis; their sizes become the target "sizes".
            An empty dict: there is no time axis, each sequence gets one frame.
        :param seq_tag: names [batch]
        :param extra: key -> [batch, ...] (written as it is, not cut) or a list of one array per sequence; a value
            without time axis gets one frame
        """
        batch = len(seq_tag)
        if not batch:
            return
        checked = self._checked(extra, batch)
        targets = {key: [np.asarray(value[b]) for b in range(batch)] for key, value in checked.items()}
        if inputs is None:
            self.insert_sequences(None, seq_tag, targets)
            return
        inputs = np.asarray(inputs)
        lengths = self._axis_lengths(inputs, seq_len, batch)
        sizes_of = [{axis: int(size[b]) for axis, size in lengths.items()} for b in range(batch)]
        frames = [_cut_and_join(inputs[b], sizes) for b, sizes in enumerate(sizes_of)]
        if len(lengths) > 1:
            sizes = np.stack([lengths[axis] for axis in sorted(lengths)], axis=1).astype(np.int32)
            targets["sizes"] = list(sizes)
            self._extra_type.setdefault("sizes", (1, 1, "int32"))
        self.insert_sequences(frames, seq_tag, targets)

    def insert_sequences(
        self,
        frames: Optional[list[NDArray[Any]]],
        seq_tag: Sequence[str],
        targets: Mapping[str, list[NDArray[Any]]],
    ) -> None:
        """Append sequences which are not padded.

        :param frames: the main data of each, [time, ...]; None in a file without main data
        :param seq_tag: their names
        :param targets: key -> further data of each, [time, ...] or []
        """
        streams = self._streams
        if streams is None:
            raise FileDataError("HDFWriter %r is closed" % self.filename)
        if not len(seq_tag):
            return
        self._check_keys(targets)
        if frames is None and not targets:
            raise FileDataError("HDFWriter %r: there is neither main data nor a target" % self.filename)
        with self._output.reporting():
            columns = [] if frames is None else [streams.append("inputs", frames, None)]
            for key in self._keys or []:
                columns.append(
                    streams.append("targets/data/" + key, [_with_time(value) for value in targets[key]], key)
                )
            if not self._keys:
                columns.append([0] * len(seq_tag))  # other readers expect a second column
            streams.append_rows(columns, list(seq_tag))
            streams.flush()
        self.num_seqs += len(seq_tag)
        self.num_timesteps += sum(columns[0])

    def _axis_lengths(self, inputs: NDArray[Any], seq_len: Lengths, batch: int) -> dict[int, NDArray[Any]]:
        if inputs.ndim != self.ndim + 1 or inputs.shape[0] != batch:
            raise FileDataError(
                "HDFWriter %r: inputs of shape %s, but expected [%d sequences] and %d more axes"
                % (self.filename, inputs.shape, batch, self.ndim)
            )
        given = dict(seq_len) if isinstance(seq_len, Mapping) else {0: seq_len}
        lengths = {int(axis): np.asarray(size, np.int64).reshape(-1) for axis, size in given.items()}
        if sorted(lengths) != list(range(len(lengths))) or len(lengths) > self.ndim:
            raise FileDataError(
                "HDFWriter %r: seq_len has the axes %s; it must be the first ones" % (self.filename, sorted(lengths))
            )
        for axis, size in lengths.items():
            if size.shape != (batch,) or (size < 0).any() or (size > inputs.shape[axis + 1]).any():
                raise FileDataError(
                    "HDFWriter %r: lengths %s of axis %d do not fit inputs of shape %s"
                    % (self.filename, size.tolist(), axis, inputs.shape)
                )
        return lengths

    def _checked(self, extra: Optional[Mapping[str, Any]], batch: int) -> dict[str, Any]:
        for key, value in (extra or {}).items():
            if key in ("data", "sizes") or "/" in key:
                raise FileDataError("HDFWriter %r: %r cannot be the name of extra data" % (self.filename, key))
            if len(value) != batch:
                raise FileDataError(
                    "HDFWriter %r: extra %r has %d entries for %d sequences" % (self.filename, key, len(value), batch)
                )
        return dict(extra or {})

    def _check_keys(self, targets: Mapping[str, Any]) -> None:
        """Check the keys against those of the first batch."""
        if self._keys is None:
            self._keys = sorted(targets)
        if sorted(targets) != self._keys:
            raise FileDataError(
                "HDFWriter %r: extra data has the keys %s, but began with %s"
                % (self.filename, sorted(targets), self._keys)
            )

    def close(self) -> None:
        """Complete the file and rename it to its target.

        :raises DataError: nothing was written, or another process has created the target
        """
        if self._streams is None:
            return
        try:
            if not self.num_seqs:
                raise FileDataError("HDFWriter %r: nothing was written" % self.filename)
            with self._output.reporting():
                assert self._output.file is not None
                self._write_facts(self._output.file)
            self._streams = None
            self._output.complete()
            self._check_target()
            self._output.publish()
        except BaseException:
            self.abort()
            raise

    def _write_facts(self, file: h5py.File) -> None:
        """Write the facts that are known only at the end."""
        assert self._streams is not None
        attrs = file.attrs
        attrs["numTimesteps"] = self.num_timesteps
        attrs["inputPattSize"] = self.dim or 1
        attrs["numDims"] = 1
        attrs["numLabels"] = self.dim or 1
        attrs["numSeqs"] = self.num_seqs
        if "labels" not in file:
            self._streams.write_labels("labels", [str(name) for name in self.labels])

    def abort(self) -> None:
        """Remove what was written; the target stays unchanged."""
        self._streams = None
        self._output.abort()

    def __enter__(self) -> HDFWriter:
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        if exc_type is None:
            self.close()
        else:
            self.abort()


def _cut_and_join(value: NDArray[Any], lengths: dict[int, int]) -> NDArray[Any]:
    """Cut one sequence to its lengths and flatten these axes into one; without any, one frame."""
    if not lengths:
        return value[None]
    value = value[tuple(slice(0, lengths[axis]) for axis in sorted(lengths))]
    joined = int(np.prod(value.shape[: len(lengths)], dtype=np.int64))
    return value.reshape((joined,) + value.shape[len(lengths) :])


def _with_time(value: NDArray[Any]) -> NDArray[Any]:
    return value if value.ndim else value.reshape(1)
