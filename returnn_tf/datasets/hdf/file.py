"""Reading one HDF corpus file: checked and indexed once, then read sequence by sequence.

Layout: ``/inputs`` and ``/targets/data/<key>`` hold all sequences concatenated on axis 0; ``/seqLengths``
[num_seqs, streams] has one column for the inputs and one per target key in sorted order; ``/seqTags`` the names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import Any, Optional, Union

import h5py
import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, FileDataError
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.safe_files import check_regular
from returnn_tf.datasets.files.index_file import SharedIndex, shared_index
from returnn_tf.datasets.hdf.library import (
    byte_strings,
    impossible_size,
    longest_string,
    open_unlocked,
    strings,
)
from returnn_tf.datasets.hdf.rows import RowReader
from returnn_tf.util.freed_memory import return_freed_memory
from returnn_tf.util.packed_strings import PackedStrings

_LARGEST_DIM = 1 << 31
_INDEX_BLOCK = 1 << 13  # entries of the index
_MANY_SEQS = 100_000  # for which names are read at the first request only, and freed memory is returned
_ALL = slice(None)


class _Process:
    """The id of this process, cached: asking the system before each read would take longer than the read."""

    pid = os.getpid()

    @classmethod
    def update(cls) -> None:
        """Refresh the id after a fork."""
        cls.pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Process.update)


class HDFFile:
    """One file, opened on demand, and reopened after a fork.

    :param path: file name
    :raises DataError: if it is missing, truncated, of another kind, or contradicts itself
    """

    def __init__(self, path: str):
        self.path = path
        self._handle: Optional[h5py.File] = None
        self._pid = -1  # the process which opened it
        self._streams: dict[str, RowReader] = {}
        self._tags: Optional[PackedStrings] = None
        try:
            self._read_index(self._open())
            if self.num_seqs <= _MANY_SEQS:
                self._tags = self._read_tags(self._open())
        except DataError:
            raise
        except Exception as exc:  # from the HDF5 library, of nearly any class
            raise self._error("it is damaged: %s" % exc) from exc
        finally:
            self.close()
        if self.num_seqs > _MANY_SEQS:
            return_freed_memory()

    def _read_index(self, root: h5py.File) -> None:
        """Check the whole structure; data is not read."""
        has_inputs = "inputs" in root
        self.target_keys = self._find_target_keys(root)
        if has_inputs and "data" in self.target_keys:
            raise self._error("it has /inputs and also a target key 'data'; rename that key")
        if not has_inputs and not self.target_keys:
            raise self._error(
                "it has neither /inputs nor /targets/data, so it is not an HDF corpus file; see HDFWriter"
            )
        self.keys: list[str] = (["data"] if has_inputs else []) + self.target_keys
        self.paths = {key: "inputs" if key == "data" and has_inputs else "targets/data/" + key for key in self.keys}
        for path in self.paths.values():
            if self._checked_strings(root, path).ndim < 1:
                raise self._error("/%s is a single value, not an array of frames" % path)
        #: key -> first frame of each sequence, and the end of the last one; with few bytes, since there may be millions
        self.offsets = self._read_offsets(root)
        self._check_tags(root)
        self.row_bytes: dict[str, int] = {key: self._row_bytes(root, path) for key, path in self.paths.items()}
        self.num_outputs, self.specs = self._read_specs(root)

    def __repr__(self) -> str:
        return "<HDFFile %r>" % self.path

    @property
    def tags(self) -> PackedStrings:
        """Return the names of the sequences.

        Those of many are read at the first request: they take most of the time to open a file and half of the memory,
        but only the process that reads batches, or chooses sequences by name, needs them.

        :raises DataError: they can't be read
        """
        if self._tags is None:
            was_open = self.is_open
            try:
                self._tags = self._read_tags(self._open())
            except DataError:
                raise
            except Exception as exc:  # from the HDF5 library, of nearly any class
                raise self._error("/seqTags can't be read: %s" % exc) from exc
            finally:
                if not was_open:
                    self.close()
            return_freed_memory()
        return self._tags

    def length(self, key: str, index: int) -> int:
        """Return the number of frames of a sequence."""
        offsets = self.offsets[key]
        length: int = offsets.item(index + 1) - offsets.item(index)
        return length

    def lengths(self, key: str, indices: Union[slice, NDArray[Any]] = _ALL) -> NDArray[Any]:
        """Return the numbers of frames of sequences, of a signed type."""
        offsets = self.offsets[key]
        lengths: NDArray[Any] = offsets[1:][indices] - offsets[:-1][indices]
        signed: NDArray[Any] = lengths.astype(np.int32 if lengths.max(initial=0) < 1 << 31 else np.int64)
        return signed

    def read(self, key: str, index: int) -> NDArray[Any]:
        """Read one sequence of one key: [length, ...], with the dtype of the file; strings as str objects."""
        offsets = self.offsets[key]
        try:
            value = self._stream(key).read(offsets.item(index), offsets.item(index + 1))
        except DataError:
            raise
        except Exception as exc:  # from the HDF5 library, of nearly any class
            raise self._error(
                "sequence %r, key %r cannot be read (damaged file?): %s" % (self.tags[index], key, exc)
            ) from exc
        return strings(value) if value.dtype.kind in "OS" else value

    def read_many(self, key: str, indices: NDArray[Any]) -> list[NDArray[Any]]:
        """Read several sequences of one key, as `read` does; an error names no sequence."""
        offsets = self.offsets[key]
        begins, ends = offsets[indices].astype(np.int64), offsets[1:][indices].astype(np.int64)
        try:
            values = self._stream(key).read_many(begins, ends)
        except DataError:
            raise
        except Exception as exc:  # from the HDF5 library, of nearly any class
            raise self._error("key %r cannot be read (damaged file?): %s" % (key, exc)) from exc
        return [strings(value) for value in values] if values[0].dtype.kind in "OS" else values

    def close(self) -> None:
        """Close the file; ``read`` reopens it."""
        if self._handle is not None and self._pid == _Process.pid:
            self._handle.close()
        self._handle = None
        self._streams = {}

    @property
    def is_open(self) -> bool:
        """Return whether this process has the file open."""
        return self._handle is not None and self._pid == _Process.pid

    def _error(self, text: str) -> DataError:
        return FileDataError("HDF file %r: %s" % (self.path, text))

    def _open(self) -> h5py.File:
        if self.is_open:
            return self._handle
        try:
            check_regular(self.path)
        except FileNotFoundError:
            text = "HDF file %r does not exist (current directory: %s)"
            raise FileDataError(text % (self.path, os.getcwd())) from None
        except OSError as exc:
            raise self._error(exc.strerror or str(exc)) from exc
        try:
            self._handle = open_unlocked(self.path)
        except OSError as exc:
            text = str(exc)
            if os.path.isdir(self.path):
                text = "it is a directory"
            elif exc.errno == errno.EACCES:
                text = "it can't be read: %s" % os.strerror(exc.errno)
            elif "truncated" in text:
                text = "it is truncated (%s); copy it again" % text
            elif not h5py.is_hdf5(self.path):
                text = "it is not an HDF5 file; HDFDataset needs files as HDFWriter makes them"
            raise self._error(text) from exc
        self._pid = _Process.pid
        self._streams = {}
        return self._handle

    def _stream(self, key: str) -> RowReader:
        """Return the reader of a key."""
        root = self._open()
        if key not in self._streams:
            self._streams[key] = RowReader(self._dataset(root, self.paths[key]), root.id.get_vfd_handle())
        return self._streams[key]

    def _dataset(self, root: h5py.File, path: str) -> h5py.Dataset:
        """Return the array at a path within the file itself, of a size that the file can hold.

        Links and references to other files are rejected.
        """
        group: Any = root
        for part in path.split("/"):
            if isinstance(group.get(part, getlink=True), h5py.ExternalLink):
                raise self._error("%r is a link to another file; copy the data into this one" % path)
            group = group.get(part) if isinstance(group, h5py.Group) else None
            if group is None:
                raise self._error("%r is missing" % ("/" + path))
        if not isinstance(group, h5py.Dataset):
            raise self._error("%r must be an array" % ("/" + path))
        if group.external or group.is_virtual:
            raise self._error("%r refers to other files; copy the data into this one" % path)
        claims = impossible_size(group)
        if claims:
            raise self._error("/%s %s" % (path, claims))
        return group

    def _checked_strings(self, root: h5py.File, path: str) -> h5py.Dataset:
        """Return the array at a path; for strings, check that each can have its declared length."""
        dataset = self._dataset(root, path)
        longest = longest_string(dataset)
        if longest > os.path.getsize(self.path):
            raise self._error("%r claims a string of %d bytes, more than the file holds" % ("/" + path, longest))
        return dataset

    def _find_target_keys(self, root: h5py.File) -> list[str]:
        if "targets" not in root:
            return []
        targets = root["targets"]
        if not isinstance(targets, h5py.Group):
            raise self._error("/targets must be a group")
        data = set(targets["data"]) if isinstance(targets.get("data"), h5py.Group) else set()
        size = set(targets["size"].attrs) if "size" in targets else set()
        for key in sorted(size - data):
            raise self._error("target %r is declared in /targets/size, but /targets/data/%s is missing" % (key, key))
        return sorted(data)

    def _read_offsets(self, root: h5py.File) -> dict[str, NDArray[Any]]:
        """Return the sums of the lengths in ``seqLengths`` by key, [num_seqs + 1], after checking them."""
        dataset = self._dataset(root, "seqLengths")
        if dataset.ndim != 2 or dataset.dtype.kind not in "iu":
            raise self._error(
                "/seqLengths must be integers of shape [num_seqs, streams], but is %s %s; write it again with HDFWriter"
                % (dataset.dtype, dataset.shape)
            )
        columns = dataset.shape[1]
        if columns != len(self.keys) and not (not self.target_keys and columns == 2):
            raise self._error(
                "/seqLengths has %d columns, but there are %d streams (%s)"
                % (columns, len(self.keys), ", ".join(self.keys))
            )
        self.num_seqs = int(dataset.shape[0])
        frames = {key: int(self._dataset(root, path).shape[0]) for key, path in self.paths.items()}
        return self._shared("lengths", lambda: self._sums_of_lengths(dataset, frames))

    def _shared(self, kind: str, make: Callable[[], dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        """Return arrays that describe all sequences; where there are many, all processes share them."""
        if self.num_seqs <= _MANY_SEQS:
            return make()
        return dict(shared_index("hdf-" + kind, [self.path], None, lambda: SharedIndex(make())).arrays)

    def _sums_of_lengths(self, dataset: h5py.Dataset, frames: Mapping[str, int]) -> dict[str, NDArray[Any]]:
        offsets = {
            key: np.zeros(self.num_seqs + 1, np.uint32 if count < 1 << 32 else np.int64)
            for key, count in frames.items()
        }
        sums = dict.fromkeys(self.keys, 0)
        for start in range(0, self.num_seqs, _INDEX_BLOCK):
            lengths = dataset[start : start + _INDEX_BLOCK, : len(self.keys)]
            if (lengths < 0).any():
                row = start + int(np.argwhere(lengths < 0)[0][0])
                raise self._error("/seqLengths has a negative length, in row %d" % row)
            for number, key in enumerate(self.keys):
                column = lengths[:, number]
                if max(sums[key], int(column.max())) > frames[key]:  # the sum might be too large for an array
                    sums[key] += sum(column.tolist())
                    continue
                ends = sums[key] + np.cumsum(column, dtype=np.int64)
                sums[key] = int(ends[-1])
                if sums[key] <= frames[key]:
                    offsets[key][start + 1 : start + 1 + len(ends)] = ends
        for key, path in self.paths.items():
            if sums[key] != frames[key]:
                raise self._error(
                    "the lengths of key %r in /seqLengths add up to %d frames, but /%s has %d; it was damaged or not "
                    "written to its end, write it again" % (key, sums[key], path, frames[key])
                )
        return offsets

    def _check_tags(self, root: h5py.File) -> None:
        dataset = self._checked_strings(root, "seqTags")
        if dataset.shape != (self.num_seqs,):
            raise self._error("/seqTags has shape %s, but /seqLengths has %d rows" % (dataset.shape, self.num_seqs))

    def _read_tags(self, root: h5py.File) -> PackedStrings:
        dataset = self._dataset(root, "seqTags")

        def read() -> dict[str, NDArray[Any]]:
            tags = PackedStrings()
            for start in range(0, self.num_seqs, _INDEX_BLOCK):
                tags.extend(byte_strings(dataset[start : start + _INDEX_BLOCK]))
            return tags.arrays()

        return PackedStrings.of_arrays(self._shared("names", read))

    def _row_bytes(self, root: h5py.File, path: str) -> int:
        """Return the size of a frame; for strings that of a pointer."""
        dataset = self._dataset(root, path)
        return int(dataset.dtype.itemsize * np.prod(dataset.shape[1:], dtype=np.int64))

    def _read_specs(self, root: h5py.File) -> tuple[dict[str, tuple[int, int]], dict[str, DataSpec]]:
        """Read (dim, ndim) and format by key."""
        outputs, specs = {}, {}
        for key, path in self.paths.items():
            dataset = self._dataset(root, path)
            dim, ndim = self._input_dim(root, dataset) if path == "inputs" else self._target_dim(root, key, dataset)
            outputs[key] = (dim, ndim)
            specs[key] = DataSpec(
                dim=dim,
                ndim=dataset.ndim,
                dtype="object" if dataset.dtype.kind in "OSU" else dataset.dtype.name,
                shape=tuple(int(n) for n in dataset.shape[1:]),
                labels=self._labels(root, "labels" if path == "inputs" else "targets/labels/" + key),
            )
        return outputs, specs

    def _input_dim(self, root: h5py.File, dataset: h5py.Dataset) -> tuple[int, int]:
        if dataset.ndim > 1:
            return int(dataset.shape[1]), dataset.ndim
        if "inputPattSize" not in root.attrs:
            raise self._error("/inputs has one axis, so the attribute inputPattSize must give the number of classes")
        return self._checked_dim(root.attrs["inputPattSize"], "inputPattSize"), 1

    def _target_dim(self, root: h5py.File, key: str, dataset: h5py.Dataset) -> tuple[int, int]:
        attrs = root["targets/size"].attrs if "targets/size" in root else {}
        if key not in attrs:
            return (int(dataset.shape[1]) if dataset.ndim > 1 else 0 if dataset.dtype.kind in "iu" else 1), dataset.ndim
        size, name = np.asarray(attrs[key]), "%s of /targets/size" % key
        if size.ndim == 0:
            return self._checked_dim(size, name), dataset.ndim
        if size.shape != (2,) or size.dtype.kind not in "iu":
            raise self._error("attribute %s is %s, but must be [dim, ndim]" % (name, size.tolist()))
        dim, ndim = self._checked_dim(size[0], name), int(size[1])
        # a value per sequence has a time axis of one frame; dim 1 is also written where it is not known
        axes_fit = ndim in (dataset.ndim, dataset.ndim - 1)
        if not axes_fit or (ndim == dataset.ndim > 1 and dim not in (1, *dataset.shape[1:])):
            raise self._error(
                "attribute %s says [dim, ndim] = %s, but the array has the shape %s; write it again"
                % (name, size.tolist(), list(dataset.shape))
            )
        return dim, ndim

    def _checked_dim(self, value: Any, name: str) -> int:
        """Return a number of classes or features from an attribute."""
        value = np.asarray(value)
        if value.size != 1 or value.dtype.kind not in "iu" or not 0 <= int(value.reshape(())) < _LARGEST_DIM:
            raise self._error(
                "attribute %s is %s, but must be a number of classes or features, below %d"
                % (name, value.tolist(), _LARGEST_DIM)
            )
        return int(value.reshape(()))

    def _labels(self, root: h5py.File, path: str) -> Optional[tuple[str, ...]]:
        return tuple(strings(self._checked_strings(root, path)[:])) if path in root else None
