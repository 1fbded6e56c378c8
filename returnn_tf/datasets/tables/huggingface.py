"""HuggingFaceDataset: tables of the package ``datasets``, a column for each data key."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ConfigError, DataError, FileDataError, FileError, shown
from returnn_tf.config.options import option
from returnn_tf.datasets.audio import AudioFeatures
from returnn_tf.datasets.audio.heard import AudibleDataset
from returnn_tf.datasets.core.data_spec import DataSpec, can_hold
from returnn_tf.datasets.core.declared import specs_of_templates
from returnn_tf.datasets.core.read_ahead import ReadAheadOptions
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.files import path_or_content
from returnn_tf.datasets.tables.arrow import (
    changed,
    check_columns,
    import_datasets,
    lengths_of,
    numbers_of,
    open_table,
)
from returnn_tf.datasets.vocabulary import make_vocabulary
from returnn_tf.util.packed_strings import PackedStrings

_BLOCK = 1 << 14


@dataclass(frozen=True)
class Column:
    """How a data key is made of its column.

    :param spec: its format, before the option ``window``
    :param vocabulary: splits the texts of the column into labels
    :param features: computes features of the audio in the column
    """

    spec: DataSpec
    vocabulary: Any = None
    features: Optional[AudioFeatures] = None

    @property
    def is_array(self) -> bool:
        """Return whether the package is to give arrays: in a fourth of the time, but in single precision."""
        plain = self.vocabulary is None and self.features is None
        return plain and not self.spec.is_text and self.spec.dtype != "float64"


def columns_of(data_format: Any, where: str) -> dict[str, Column]:
    """Parse the option ``data_format``.

    :param where: prefix of errors
    :raises ConfigError: it has another form; names the key
    """
    if not isinstance(data_format, Mapping) or not data_format:
        raise FileError("%s must be {column: {'dim': ..., 'dtype': ...}}, not %s" % (where, shown(data_format)))
    found = {}
    for key, given in data_format.items():
        place = "%s, key %r" % (where, key)
        if not isinstance(given, Mapping):
            raise FileError("%s: the format must be a dict as in extern_data, not %s" % (place, shown(given)))
        found[str(key)] = _column(str(key), dict(given), place, where)
    return found


def _column(key: str, given: dict[str, Any], place: str, where: str) -> Column:
    audio, vocab = given.pop("audio", None), given.get("vocab")
    if audio is not None:
        if given:
            raise FileError("%s: 'audio' determines the format, so there must be no %r" % (place, next(iter(given))))
        features = AudioFeatures.make(audio, owner=place)
        return Column(features.spec, features=features)
    if vocab is None:
        return Column(specs_of_templates({key: given}, where=where)[key])
    given.pop("vocab")
    vocabulary = make_vocabulary(vocab, owner=place) if isinstance(vocab, Mapping) else vocab
    spec = specs_of_templates({key: {"dim": len(vocabulary.labels), "sparse": True, **given}}, where=where)[key]
    return Column(dataclasses.replace(spec, labels=tuple(map(str, vocabulary.labels))), vocabulary)


@register_dataset()
class HuggingFaceDataset(AudibleDataset):
    """A table of the package ``datasets``: Arrow or Parquet on the disk, in a store or from a hub.

    Each data key is a column. ``data_format`` declares it as ``extern_data`` does, with ``dim``, ``dtype``, ``shape``,
    ``sparse``; a text becomes labels by ``vocab``, else ``{"dtype": "string", "shape": ()}``; audio (of that package's
    type ``Audio``, or the path of a file) becomes features by ``audio``, as in other datasets of speech.

    The table stays on the disk; Parquet is converted to Arrow first, in the package's own cache. Tags are read when the
    first epoch begins.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {"class": "HuggingFaceDataset", "dataset_opts": "corpus/train", "seq_tag_column": "id",
    ...          "data_format": {"audio": {"audio": {"features": "log_mel_filterbank"}},
    ...                          "text": {"vocab": {"class": "HuggingFaceTokenizer",
    ...                                             "tokenizer_file": "tokenizer.json"}}}}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    @dataclass
    class Options(ReadAheadOptions):
        dataset_opts: Any = option(
            help="folder of save_to_disk, .arrow or .parquet file, list of such files, options of load_dataset, or a "
            "function that returns one of these or the table"
        )
        data_format: dict[str, Any] = option(
            help="{column: format}: dim, dtype, shape, sparse as in extern_data; or vocab, or audio"
        )
        map_func: Optional[Callable[..., Any]] = option(None, help="function of the table that returns another one")
        rename_columns: Optional[dict[str, str]] = option(None, help="{column: new name}, after map_func")
        cast_columns: Optional[dict[str, Any]] = option(
            None, help="{column: feature of the package, or its dtype}, after rename_columns"
        )
        seq_tag_column: Optional[str] = option("id", help="column with the tags; None: 'seq-<number of the row>'")
        sorting_seq_len_column: Optional[str] = option(
            None, help="column with the numbers by which sequences are sorted"
        )
        sorting_seq_len_column_data: Optional[str] = option(
            None, help="column with the lists or texts by whose lengths sequences are sorted"
        )
        use_cache_manager: bool = option(
            False, help="read copies on the local disk: `docs/data.md`, returnn-tf explain data-files"
        )

    def setup(self) -> None:
        """Check all options; the table is opened when it is needed first."""
        opts = self.opts
        self._columns = columns_of(opts.data_format, "%s: option 'data_format'" % self._owner())
        if opts.sorting_seq_len_column is not None and opts.sorting_seq_len_column_data is not None:
            raise FileError(
                "%s: give 'sorting_seq_len_column' or 'sorting_seq_len_column_data', not both" % self._owner()
            )
        self.data_specs = self.windowed({key: column.spec for key, column in self._columns.items()})
        self._lock = threading.RLock()
        self._opened: Any = None
        self._views: dict[tuple[str, ...], Any] = {}
        self._tags: Optional[PackedStrings] = None

    # ---- the table

    @property
    def table(self) -> Any:
        """Return the table, a ``datasets.Dataset``."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self) -> Any:
        opts, owner = self.opts, self._owner()
        with self._wanted_by("dataset_opts"):
            datasets = import_datasets()
        where = "%s: option 'dataset_opts'" % owner
        table = open_table(opts.dataset_opts, where=where, use_cache_manager=opts.use_cache_manager)
        if opts.map_func is not None:
            table = changed(table, opts.map_func, "%s: map_func" % owner)
        for name in ("rename_columns", "cast_columns"):
            check_columns(table, list(getattr(opts, name) or {}), "%s: option %r" % (owner, name))
            if name == "rename_columns" and opts.rename_columns:
                table = changed(table, lambda old: old.rename_columns(opts.rename_columns), "%s: %s" % (owner, name))
        for column, feature in (opts.cast_columns or {}).items():
            feature = datasets.Value(feature) if isinstance(feature, str) else feature
            cast = _cast(column, feature)
            table = changed(table, cast, "%s: option 'cast_columns', column %r" % (owner, column))
        check_columns(table, list(self._columns), "%s: option 'data_format'" % owner)
        for key, column in self._columns.items():
            if column.features is not None and isinstance(table.features[key], datasets.Audio):
                table = table.cast_column(key, datasets.Audio(decode=False))  # it is decoded here, without torch
        if not len(table):
            raise FileDataError("%s: the table has no rows" % where)
        return table.with_format(None)

    @property
    def num_seqs(self) -> int:
        """Return the number of rows."""
        return len(self.table)

    @property
    def tags(self) -> Optional[PackedStrings]:
        """Return the tags, None if there is no column with them."""
        column = self.opts.seq_tag_column
        if column is None:
            return None
        with self._lock:
            if self._tags is None:
                self._tags = self._read_tags(column)
            return self._tags

    def _read_tags(self, column: str) -> PackedStrings:
        where = "%s: option 'seq_tag_column'" % self._owner()
        if column not in self.table.column_names:
            names = ", ".join(map(repr, self.table.column_names))
            text = "%s: there is no column %r, only %s; None: the numbers of the rows are the tags"
            raise FileError(text % (where, column, names))
        tags, view = PackedStrings(), self.table.with_format("arrow", columns=[column])
        for start in range(0, len(self.table), _BLOCK):
            for row, tag in enumerate(view[start : start + _BLOCK].column(column).to_pylist(), start):
                if isinstance(tag, bool) or not isinstance(tag, (str, int)):
                    text = "%s: row %d of the column %r has %s, but must have a text or an integer"
                    raise FileDataError(text % (where, row, column, shown(tag)))
                tags.append(str(tag))
        twice = tags.repeated()
        if twice:
            first = next(row for row, tag in enumerate(tags) if tag == tags[twice[0]])
            text = "%s: the rows %d and %d have the same tag %r"
            raise FileDataError(text % (where, first, twice[0], tags[first]))
        return tags

    def tag(self, index: int) -> str:
        """Return the tag of a row."""
        tags = self.tags
        return super().tag(index) if tags is None else tags[index]

    def seq_lengths(self) -> Optional[NDArray[Any]]:
        """Return the lengths [num_seqs] by which sequences are ordered, None if no column gives them."""
        opts = self.opts
        for name, read in (("sorting_seq_len_column", numbers_of), ("sorting_seq_len_column_data", lengths_of)):
            column = getattr(opts, name)
            if column is not None:
                where = "%s: option %r" % (self._owner(), name)
                check_columns(self.table, [column], where)
                return read(self.table, column, where)
        return None

    # ---- data

    @property
    def read_threads(self) -> int:
        """Return the number of threads that read ahead; without audio there is nothing to decode."""
        threads = [c.features.threads(self.opts.read_threads) for c in self._columns.values() if c.features is not None]
        return min(threads, default=1)

    @property
    def redraws(self) -> bool:
        """Return whether features or labels are random."""
        return any(
            (column.features is not None and column.features.draws) or _is_seeded(column.vocabulary)
            for column in self._columns.values()
        )

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read the data of one row. What is random depends on epoch and index only."""
        return self.read_again(index, epoch, keys, 0)

    def read_again(self, index: int, epoch: int, keys: Sequence[str], nth: int) -> dict[str, NDArray[Any]]:
        """Read a row with other random numbers than before."""
        seed = [self.epoch_seed(epoch), index, *([nth] if nth else [])]
        with self._lock:
            row = dict(self._view(tuple(keys))[index])
            for key in keys:
                if self._columns[key].is_array and _may_have_nulls(row[key]):
                    row[key] = self.table.select_columns([key])[index][key]
        return {key: self._value(key, row[key], seed, index) for key in keys}

    def _view(self, keys: tuple[str, ...]) -> Any:
        """Return the table with some of its columns, of which those of numbers give arrays."""
        if keys not in self._views:
            arrays = [key for key in keys if self._columns[key].is_array]
            view = self.table.select_columns(list(keys))
            if arrays:
                view = view.with_format("numpy", columns=arrays, output_all_columns=True)
            self._views[keys] = view
        return self._views[keys]

    def _value(self, key: str, value: Any, seed: list[int], index: int) -> NDArray[Any]:
        column = self._columns[key]
        try:
            if value is None:
                raise FileDataError("it is null")
            if column.features is not None:
                extract = functools.partial(column.features.extract, seq_name=self.tag(index))
                return self._of_audio(column.features, value, seed, extract)[0]
            if column.vocabulary is not None and isinstance(value, str):
                return self._labels(column.vocabulary, value, seed)
            return _array(value, column.spec)
        except (ConfigError, DataError) as exc:
            raise FileDataError("row %d, column %r: %s" % (index, key, exc)) from exc

    @property
    def reads_audio(self) -> bool:
        """Return whether there is a column with audio."""
        return any(column.features is not None for column in self._columns.values())

    def heard(self, index: int, epoch: int) -> tuple[NDArray[Any], int]:
        """Return audio and sample rate of the first column with audio, see `AudibleDataset.heard`."""
        key, features = next((key, col.features) for key, col in self._columns.items() if col.features is not None)
        with self._lock:
            value = self._view((key,))[index][key]
        return self._of_audio(features, value, [self.epoch_seed(epoch), index], features.heard)

    def _of_audio(
        self, features: AudioFeatures, value: Any, seed: list[int], compute: Callable[..., NDArray[Any]]
    ) -> tuple[NDArray[Any], int]:
        """Return what a method of the features computes of the audio in a row, and the sample rate."""
        if isinstance(value, str):
            value = {"path": value}
        if not isinstance(value, Mapping) or not (value.get("bytes") or value.get("path")):
            raise FileDataError("it has %s, but must have audio: bytes, or the path of a file" % shown(value))
        name = str(value.get("path") or "(of %d bytes)" % len(value["bytes"]))
        content = value.get("bytes") or path_or_content(name, wanted=self.opts.use_cache_manager)
        samples, rate = features.read(content, name=name)
        try:
            return compute(samples, rate, rng=np.random.RandomState(seed)), rate
        except (ConfigError, DataError) as exc:
            raise FileDataError("audio file %r: %s" % (name, exc)) from exc

    def _labels(self, vocabulary: Any, text: str, seed: list[int]) -> NDArray[Any]:
        with self._lock:  # a vocabulary that samples has one generator
            if _is_seeded(vocabulary):
                vocabulary.set_random_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
            return np.asarray(vocabulary.get_seq(text), np.int32)


def _may_have_nulls(value: Any) -> bool:
    """Return whether an array may have been made of nulls, which become NaN, as all in the array become floats."""
    array = np.asarray(value)
    return bool(array.dtype.kind == "O" or (array.dtype.kind == "f" and np.isnan(array).any()))


def _cast(column: str, feature: Any) -> Callable[[Any], Any]:
    return lambda table: table.cast_column(column, feature)


def _is_seeded(vocabulary: Any) -> bool:
    return bool(getattr(vocabulary, "is_random", hasattr(vocabulary, "set_random_seed")))


def _array(value: Any, spec: DataSpec) -> NDArray[Any]:
    """Return a value of a column as an array.

    :raises DataError: it has another type or shape than declared
    """
    if spec.is_text:
        if not isinstance(value, str):
            raise FileDataError("it is %s, but data_format declares a text" % shown(value))
        return np.array(value, dtype=object)
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        array = np.empty((), object)
    value = value.item() if isinstance(value, np.generic) else value
    fits = array.ndim == spec.ndim and all(n in (None, got) for n, got in zip(spec.shape, array.shape[1:]))
    if array.dtype.kind in "OUS" or not fits:
        what = shown(value) if array.dtype.kind in "OUS" else "of the shape %s" % list(array.shape)
        sizes = [None, *spec.shape] if spec.ndim else []
        raise FileDataError("it is %s, but data_format declares %s of the shape %s" % (what, spec.dtype, sizes))
    if array.dtype.kind != "b" and not can_hold(spec.dtype, dataclasses.replace(spec, dtype=array.dtype.name, dim=0)):
        raise FileDataError("it has the type %s, but data_format declares %s" % (array.dtype, spec.dtype))
    return array.astype(spec.numpy_dtype)
