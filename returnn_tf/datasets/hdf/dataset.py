"""HDFDataset: sequences in HDF files, read on demand."""

from __future__ import annotations

import bisect
import collections
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import FileDataError, FileError
from returnn_tf.config.options import option
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.files import local_copy
from returnn_tf.datasets.hdf.file import HDFFile

resource: Optional[ModuleType]
try:
    import resource
except ImportError:  # not on Windows
    resource = None

# Opening a file takes as long as reading ten short sequences, and an open one about 1 MB of memory.
_OPEN_FILES_RANGE = 64, 1024
_MANY_OF_FILE = 32  # sequences, for which arrays are quicker
_BLOCK_BYTES = 16 << 20  # of sequences read at once


def max_open_files() -> int:
    """Return the number of HDF files a dataset keeps open: half of the system's limit for the process, at most 1024."""
    lowest, highest = _OPEN_FILES_RANGE
    if resource is None:
        return lowest
    allowed: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return highest
    return max(min(allowed // 2, highest), min(lowest, allowed // 4), 1)


@register_dataset()
class HDFDataset(Dataset):
    """Sequences of one or several HDF files, concatenated.

    The files are indexed once; data is read with each sequence. All files need the keys of the first one with the same
    dims; further keys of later files are ignored. The length of a sequence for ``sorted`` etc. is that of "data", or
    of the first target without it.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {"class": "HDFDataset", "files": ["a.hdf", "b.hdf"], "seq_ordering": "laplace:.100"}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    @dataclass
    class Options(Dataset.Options):
        files: Union[list[Any], str] = option(help="HDF files, a list or one name")
        use_cache_manager: bool = option(
            False, help="read copies on the local disk: `docs/data.md`, returnn-tf explain data-files"
        )
        cache_byte_size: int = option(0, help="bytes of read sequences to keep; 0 = none, -1 = all")

    def setup(self) -> None:
        """Open and index all files."""
        files = [self.opts.files] if isinstance(self.opts.files, str) else list(self.opts.files)
        if not files:
            raise FileError("%s: option 'files' is empty" % self._owner())
        if self.opts.cache_byte_size and self.opts.partition_epoch > 1:
            raise FileError("%s: partition_epoch > 1 needs cache_byte_size = 0" % self._owner())
        with self._wanted_by("files"):
            self.files = [HDFFile(local_copy(str(path), wanted=self.opts.use_cache_manager)) for path in files]
        first = self.files[0]
        for other in self.files[1:]:
            self._check_same_format(first, other)
        self._starts: list[int] = [0]
        for file in self.files:
            self._starts.append(self._starts[-1] + file.num_seqs)
        self.data_specs = self.windowed(first.specs)
        self._max_open = max_open_files()
        self._open: collections.OrderedDict[int, HDFFile] = collections.OrderedDict()
        self._cache: dict[tuple[int, str], NDArray[Any]] = {}
        self._cached_bytes = 0

    def _check_same_format(self, first: HDFFile, other: HDFFile) -> None:
        for key, spec in first.specs.items():
            if key not in other.specs:
                raise FileDataError("HDF file %r lacks the key %r which %r has" % (other.path, key, first.path))
            got = other.specs[key]
            if (got.dim, got.ndim, got.shape[1:]) != (spec.dim, spec.ndim, spec.shape[1:]):
                raise FileDataError(
                    "HDF file %r: key %r has dim %d and %d axes, but dim %d and %d axes in %r"
                    % (other.path, key, got.dim, got.ndim, spec.dim, spec.ndim, first.path)
                )

    @property
    def num_seqs(self) -> int:
        """Return the number of sequences in all files."""
        return self._starts[-1]

    @property
    def num_outputs(self) -> dict[str, tuple[int, int]]:
        """Return (dim, number of axes with time) by key, as declared in the files."""
        return dict(self.files[0].num_outputs)

    def _locate(self, index: int) -> tuple[int, int]:
        """Return the number of the file and the index in it."""
        if len(self.files) == 1:
            return 0, index
        number = bisect.bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]

    def tag(self, index: int) -> str:
        """Return the tag from ``seqTags``."""
        number, local = self._locate(index)
        return self.files[number].tags[local]

    def file_of(self, index: int) -> str:
        """Return the path of the HDF file."""
        return self.files[self._locate(index)[0]].path

    def lengths(self, index: int) -> dict[str, int]:
        """Return frames by key, from the index."""
        number, local = self._locate(index)
        file = self.files[number]
        return {key: file.length(key, local) for key in self.data_specs}

    def lengths_many(self, indices: NDArray[Any]) -> dict[str, list[int]]:
        """Return the lengths of several sequences by key, from the index."""
        if len(self.files) == 1:
            return {key: self.files[0].lengths(key, indices).tolist() for key in self.data_specs}
        parts = self._by_file(indices)
        if parts is None:
            known = [self.lengths(index) for index in indices.tolist()]
            return {key: [lengths[key] for lengths in known] for key in self.data_specs}
        columns = {key: np.empty(len(indices), np.int64) for key in self.data_specs}
        for file, positions, local in parts:
            for key, column in columns.items():
                column[positions] = file.lengths(key, local)
        return {key: column.tolist() for key, column in columns.items()}

    def _by_file(self, indices: NDArray[Any]) -> Optional[list[tuple[HDFFile, NDArray[Any], NDArray[Any]]]]:
        """Return each file with positions in the indices and those in it; None if it has few: one by one is quicker."""
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        in_use = np.unique(numbers).tolist()
        if len(indices) < _MANY_OF_FILE * len(in_use):
            return None
        positions = [np.flatnonzero(numbers == number) for number in in_use]
        return [(self.files[n], places, indices[places] - self._starts[n]) for n, places in zip(in_use, positions)]

    def seq_lengths(self) -> NDArray[Any]:
        """Return lengths [num_seqs] of the first stream."""
        return np.concatenate([file.lengths(file.keys[0]) for file in self.files])

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read the frames of one sequence."""
        return {key: self._read_key(index, key) for key in keys}

    def _read_key(self, index: int, key: str) -> NDArray[Any]:
        cached = self._cache.get((index, key))
        if cached is not None:
            return cached
        number, local = self._locate(index)
        value = self._file(number).read(key, local)
        limit = self.opts.cache_byte_size
        if limit < 0 or self._cached_bytes + value.nbytes <= limit:
            value.setflags(write=False)
            self._cache[(index, key)] = value
            self._cached_bytes += value.nbytes
        return value

    def _file(self, number: int) -> HDFFile:
        """Return a file for reading, and close the one that was not read for longest if too many are open."""
        file = self.files[number]
        self._open[number] = file
        self._open.move_to_end(number)
        if len(self._open) > self._max_open:
            self._open.popitem(last=False)[1].close()
        return file

    def read_many(self, indices: NDArray[Any], epoch: int, keys: Sequence[str]) -> dict[str, Sequence[NDArray[Any]]]:
        """Read as many of the sequences as fit into 16 MB, at least the first, file by file."""
        if self.opts.cache_byte_size:
            return super().read_many(indices, epoch, keys)
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        count = self._block_size(indices, numbers, keys)
        in_use = np.unique(numbers[:count]).tolist()
        found: dict[str, Sequence[NDArray[Any]]] = {}
        for key in keys:
            column: list[Any] = [None] * count
            for number in in_use:
                positions = np.flatnonzero(numbers[:count] == number)
                values = self._file(number).read_many(key, indices[positions] - self._starts[number])
                for position, value in zip(positions.tolist(), values):
                    column[position] = value
            found[key] = column
        return found

    def digest_of_tags(self) -> bytes:
        """Return a digest of the tags of all files."""
        return b"".join(file.tags.digest() for file in self.files)

    def tags_many(self, indices: Sequence[int]) -> list[str]:
        """Return the tags of several sequences."""
        if len(self.files) == 1:
            return self.files[0].tags.chosen(indices)
        parts = self._by_file(np.asarray(indices, np.int64))
        if parts is None:
            return super().tags_many(indices)
        found = np.empty(len(indices), object)
        for file, positions, local in parts:
            found[positions] = file.tags.chosen(local.tolist())
        tags: list[str] = found.tolist()
        return tags

    def _block_size(self, indices: NDArray[Any], numbers: NDArray[Any], keys: Sequence[str]) -> int:
        """Return the number of sequences to read at once, at least 1."""
        sizes = np.zeros(len(indices), np.int64)
        for number in np.unique(numbers).tolist():
            of_file = numbers == number
            file, chosen = self.files[number], indices[of_file] - self._starts[number]
            sizes[of_file] = sum(file.lengths(key, chosen).astype(np.int64) * file.row_bytes[key] for key in keys)
        return max(int(np.searchsorted(np.cumsum(sizes), _BLOCK_BYTES, side="right")), 1)

    def close(self) -> None:
        """Close the files; they are reopened on demand."""
        for file in self.files:
            file.close()
        self._open.clear()
