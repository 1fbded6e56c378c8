"""SprintCacheDataset: features and alignments in archives of RASR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import RasrDataError, RasrError
from returnn_tf.config.options import from_options, option
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.safe_files import wanted_by
from returnn_tf.rasr.datasets.allophones import AllophoneLabeling
from returnn_tf.rasr.datasets.archive import Archive, ArchiveBundle, open_archive
from returnn_tf.rasr.datasets.entries import decode_alignment, decode_features

_ATTRIBUTES = ".attribs"  # entries with this ending describe another one


@dataclass
class StreamOptions:
    """The options of one data key."""

    filename: str = option(help="archive, or bundle of archives (.bundle)")
    data_type: Optional[str] = option(
        None,
        help="default: feat for 'data', align for 'classes' and where allophone_labeling is given, else feat",
        choices=("feat", "align"),
    )
    allophone_labeling: Optional[dict[str, Any]] = option(
        None, help="how labels of an alignment become classes: silence_phone, allophone_file, state_tying_file, ..."
    )


class _Stream:
    """One data key: an archive, and how its entries are decoded."""

    def __init__(self, key: str, options: Any, owner: str):
        self.owner = "%s, key %r" % (owner, key)
        if isinstance(options, str):
            options = {"filename": options}
        if not isinstance(options, Mapping):
            raise RasrError("%s: it must be a dict with 'filename', not %r" % (self.owner, options))
        opts = from_options(StreamOptions, dict(options), where=self.owner, none_is_absent=True)
        default = "align" if key == "classes" or (opts.allophone_labeling and key != "data") else "feat"
        self.align = (opts.data_type or default) == "align"
        if self.align and opts.allophone_labeling is None:
            raise RasrError(
                "%s: an alignment needs allophone_labeling, a dict with silence_phone, allophone_file and "
                "state_tying_file or phoneme_file." % self.owner
            )
        with wanted_by("%s: option 'filename'" % self.owner):
            self.archive: Union[Archive, ArchiveBundle] = open_archive(opts.filename)
        self.names = [name for name in self.archive.entries if not name.endswith(_ATTRIBUTES)]
        self.labeling = AllophoneLabeling(opts.allophone_labeling or {}, owner=self.owner) if self.align else None
        self.dim = self.labeling.num_labels if self.labeling else self._feature_dim()

    def _feature_dim(self) -> int:
        """Return the dim of the first entry that has vectors."""
        for name in self.names:
            vectors = decode_features(self.archive.read(name), self.place(name)).vectors
            if len(vectors):
                return int(vectors.shape[1])
        raise RasrDataError("%s: archive %r has no features." % (self.owner, self.archive.path))

    def place(self, name: str) -> str:
        return "archive %r, entry %r" % (self.archive.path, name)

    @property
    def spec(self) -> DataSpec:
        if self.labeling:
            return DataSpec(dim=self.dim, ndim=1, dtype=self.labeling.dtype)
        return DataSpec(dim=self.dim, ndim=2, dtype="float32", shape=(self.dim,))

    def read(self, name: str) -> NDArray[Any]:
        content = self.archive.read(name)
        if self.labeling:
            return self.labeling.classes(decode_alignment(content, self.place(name)), self.place(name))
        vectors = decode_features(content, self.place(name)).vectors
        if not len(vectors):
            return np.zeros((0, self.dim), np.float32)
        if vectors.shape[1] != self.dim:
            raise RasrDataError("%s: vectors of dim %d, not %d." % (self.place(name), vectors.shape[1], self.dim))
        return np.ascontiguousarray(vectors)


@register_dataset()
class SprintCacheDataset(Dataset):
    """Sequences in archives that RASR wrote ("sprint caches"): features, and alignments as classes.

    All archives must have entries of the same names. "data" is float32 [time, dim], or classes of an alignment; the
    others are classes, int8, int16 or int32 [time] depending on their number, or features. The length for ``sorted``
    etc. is the number of bytes of an entry of "data".

    >>> from returnn_tf.datasets import Dataset
    >>> labels = {"silence_phone": "si", "allophone_file": "allophones", "state_tying_file": "state-tying"}
    >>> train = {"class": "SprintCacheDataset", "data": {
    ...     "data": {"filename": "features.cache"},
    ...     "classes": {"filename": "alignment.cache", "allophone_labeling": labels}}}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    @dataclass
    class Options(Dataset.Options):
        data: dict[str, Any] = option(help="key -> {'filename': .., 'data_type': .., 'allophone_labeling': ..}")

    def setup(self) -> None:
        """Open the archives, and compare their names."""
        if "data" not in self.opts.data:
            raise RasrError("%s: option 'data' lacks 'data'; it has %s" % (self._owner(), list(self.opts.data)))
        self._streams = {key: _Stream(key, given, self._owner()) for key, given in self.opts.data.items()}
        self._names = self._streams["data"].names
        self._check_names()
        self.data_specs = self.windowed({key: stream.spec for key, stream in self._streams.items()})

    def _check_names(self) -> None:
        first = self._streams["data"]
        for key, stream in self._streams.items():
            if set(stream.names) == set(first.names):
                continue
            only = sorted(set(first.names) - set(stream.names)), sorted(set(stream.names) - set(first.names))
            raise RasrDataError(
                "%s: the archives must have the same names, but %d of %d in %r (key 'data') are not in %r (key %r), "
                "and %d the other way round, such as %r."
                % (
                    self._owner(),
                    len(only[0]),
                    len(first.names),
                    first.archive.path,
                    stream.archive.path,
                    key,
                    len(only[1]),
                    (only[0] + only[1])[0],
                )
            )

    @property
    def num_seqs(self) -> int:
        """Return the number of entries."""
        return len(self._names)

    @property
    def target_list(self) -> list[str]:
        """Return the keys with alignments, besides "data"."""
        return [key for key, stream in self._streams.items() if stream.align and key != "data"]

    def tag(self, index: int) -> str:
        """Return the name of the entry."""
        return self._names[index]

    def file_of(self, index: int) -> str:
        """Return the archive of "data"."""
        return self._streams["data"].archive.path

    def seq_lengths(self) -> NDArray[Any]:
        """Return bytes of the entries of "data", [num_seqs]."""
        archive = self._streams["data"].archive
        return np.array([archive.size(name) for name in self._names], np.int64)

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read and decode the entries of one sequence."""
        return {key: self._streams[key].read(self._names[index]) for key in keys}
