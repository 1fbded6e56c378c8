"""DistributeFilesDataset: the files of a large corpus, distributed over the sub-epochs of a pass."""

from __future__ import annotations

import ast
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DatasetDataError, DatasetError, UserError, shown
from returnn_tf.config.options import at_least, option
from returnn_tf.config.user_code import result_of_config
from returnn_tf.datasets.combining.base import (
    ChainedEpoch,
    CombiningDataset,
    FormatOfInner,
    Link,
    difference,
    inner_dataset,
)
from returnn_tf.datasets.core import safe_files
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.share import ALL, Chosen
from returnn_tf.datasets.files import file_size

_ORDERS = ("default", "random")
_ORDERS_OF_INNER = ("seq_ordering", "seq_order_control_dataset", "map_seq_stream")


@register_dataset()
class DistributeFilesDataset(FormatOfInner, CombiningDataset):
    """A corpus of many files, of which each sub-epoch opens a part.

    The files are distributed over ``partition_epoch`` sub-epochs of about the same number of bytes, in their order or
    in another random one in each pass. A function of the config makes the dataset of a sub-epoch from its files; those
    of the next sub-epochs are opened while one is read.
    """

    takes_default_order = False
    is_stream = True
    takes = frozenset()

    @dataclass
    class Options(CombiningDataset.Options):
        files: Any = option(
            help="list of files, or of nested lists or dicts of files which stay together; a function that returns it, "
            "or a .txt, .json or .py file with it"
        )
        get_sub_epoch_dataset: Any = option(help="function of a list of entries of 'files' -> dataset, as a dict")
        preload_next_n_sub_epochs: int = option(
            1, help="number of sub-epochs whose datasets are made in advance", check=at_least(0)
        )
        buffer_size: int = option(1, help="sequences to buffer", inert="the loading process reads ahead whole batches")
        distrib_shard_files: bool = option(
            False,
            help="give each process other files",
            inert="each process reads its share of the sequences of all files, so that none is lost or read twice",
        )
        sharding_fix: Optional[bool] = option(
            None, help="False: with _num_shards, the dataset of a sub-epoch is divided once more by its own shards"
        )

    def setup(self) -> None:
        """Read the list of files, and distribute it once to find mistakes."""
        super().setup()
        opts = self.opts
        where = "%s: option 'files'" % self._owner()
        for name in ("repeat_epoch", "seq_list_filter_file", "unique_seq_tags", "seq_order_seq_lens_file"):
            if getattr(opts, name) not in (1, None, False):
                raise DatasetError("%s: set option %r in the dataset of a sub-epoch" % (self._owner(), name))
        if self.epoch_order.fixed is not None and self.epoch_order.fixed.kind not in _ORDERS:
            raise DatasetError(
                "%s: seq_ordering %r is not one of %s; it orders the files, set that of sequences in "
                "get_sub_epoch_dataset" % (self._owner(), opts.seq_ordering, " and ".join(_ORDERS))
            )
        if not callable(opts.get_sub_epoch_dataset):
            text = "%s: option 'get_sub_epoch_dataset' must be a function, not %s"
            raise DatasetError(text % (self._owner(), shown(opts.get_sub_epoch_dataset)))
        self._entries = read_file_list(opts.files, where=where)
        self._num_bins = opts.partition_epoch * opts._num_shards
        if len(self._entries) < self._num_bins:
            raise DatasetError(
                "%s has %d entries, fewer than partition_epoch=%d%s"
                % (
                    where,
                    len(self._entries),
                    opts.partition_epoch,
                    " times _num_shards=%d" % opts._num_shards if opts._num_shards > 1 else "",
                )
            )
        self._sizes = [size_of_entry(entry, where=where) for entry in self._entries]
        self._first: Optional[Dataset] = None
        self._prepared: dict[int, Preparation] = {}

    # ---- format, from the first file

    def make_specs(self) -> Mapping[str, DataSpec]:
        """Return the format of the dataset of the first entry."""
        return self.format_source.data_specs

    @property
    def format_source(self) -> Dataset:
        """Return the dataset of the first entry."""
        if self._first is None:
            self._first = self._make(self._entries[:1])
        return self._first

    @property
    def labels(self) -> dict[str, list[str]]:
        """Return class names by key, where known."""
        return self.format_source.labels

    @property
    def endless(self) -> bool:
        """Return False: an epoch ends."""
        return False

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences if one epoch reads all files; None: unknown."""
        return self._sub_epoch(1).num_seqs if self._num_bins == 1 else None

    def tag(self, index: int) -> str:
        """Return the tag of a sequence if one epoch reads all files."""
        if self._num_bins > 1:
            raise DatasetError("%s: tags are known only while the files of an epoch are read" % self._owner())
        return self._sub_epoch(1).tag(index)

    # ---- sub-epochs

    def files_of_epoch(self, epoch: int) -> list[Any]:
        """Return the entries of ``files`` which this epoch reads."""
        ordering = self.ordering(epoch)
        if ordering.kind not in _ORDERS:
            raise DatasetError(
                "%s: seq_ordering of epoch %d is %r, not one of %s"
                % (self._owner(), epoch, ordering.kind, " and ".join(_ORDERS))
            )
        order = list(range(len(self._entries)))
        if ordering.kind == "random":
            np.random.RandomState(self.epoch_seed(epoch, nth=ordering.nth)).shuffle(order)
        bins = bins_by_size([self._sizes[index] for index in order], self._num_bins)
        parts = self.opts.partition_epoch
        chosen = bins[self.opts._shard_index * parts + (max(epoch, 1) - 1) % parts]
        return [self._entries[order[index]] for index in chosen]

    def _make(self, entries: list[Any]) -> Dataset:
        """Create the dataset of some entries."""
        where = "%s: get_sub_epoch_dataset" % self._owner()
        spec = result_of_config(where, lambda: self.opts.get_sub_epoch_dataset(entries))
        if not isinstance(spec, Mapping):
            raise DatasetError('%s must return a dict with "class", not %s' % (where, shown(spec)))
        if spec.get("partition_epoch") not in (None, 1):
            raise DatasetError(
                "%s: partition_epoch must be an option of %s, not of the inner dataset" % (where, self.name)
            )
        if not _names_order(spec):
            raise DatasetError("%s: the inner dataset must name its seq_ordering, e.g. 'default' or 'random'" % where)
        if self.opts.sharding_fix is not False:
            spec = {"_num_shards": 1, "_shard_index": 0, **spec}
        return inner_dataset(self, spec, "%s_sub_epoch" % self.name)

    def _key(self, epoch: int) -> int:
        """Return the epoch itself, or 1 if all epochs have the same files in the same order."""
        same = self._num_bins == 1 and self.epoch_order.fixed is not None and self.epoch_order.fixed.kind == "default"
        return 1 if same else epoch

    def _sub_epoch(self, epoch: int) -> Dataset:
        """Return the dataset of an epoch."""
        return self._preparation(self._key(epoch)).result()

    def _preparation(self, key: int) -> Preparation:
        prepared = self._prepared.get(key)
        if prepared is None or not prepared.is_ours:
            prepared = self._prepared[key] = Preparation(lambda: self._make(self.files_of_epoch(key)))
        return prepared

    def _prepare_next(self, epoch: int) -> None:
        """Start making the datasets of the next epochs, and drop all others."""
        wanted = [self._key(number) for number in range(epoch, epoch + 1 + self.opts.preload_next_n_sub_epochs)]
        for old in [old for old in self._prepared if old not in wanted]:
            self._prepared.pop(old).drop()
        for key in wanted:
            if key not in self._prepared:
                self._preparation(key).start()

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return None: the order is that of the dataset of the sub-epoch."""
        return None

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> ChainedEpoch:
        """Return the sequences of an epoch by position, to be closed."""
        if chosen.is_explicit:
            raise DatasetError("%s opens other files in each epoch, so its sequences can't be chosen" % self._owner())
        inner = self._sub_epoch(epoch)
        self._prepare_next(epoch)
        full_epoch = (max(epoch, 1) - 1) // self.opts.partition_epoch + 1
        self._check_format(inner)
        return ChainedEpoch(self, epoch, keys, [Link(inner.open_epoch(full_epoch, keys))], chosen.share)

    def _check_format(self, inner: Dataset) -> None:
        differs = "" if inner.is_stream else difference(self.format_source.data_specs, inner.data_specs)
        if differs:
            raise DatasetDataError(
                "%s: in these files, %s in those of %s" % (self._owner(), differs, shown(self._entries[0]))
            )


def _names_order(spec: Any) -> bool:
    """Return whether a dataset, or one inside it, says in which order it is read."""
    if isinstance(spec, Mapping):
        return any(spec.get(name) is not None for name in _ORDERS_OF_INNER) or any(map(_names_order, spec.values()))
    return isinstance(spec, (list, tuple)) and any(map(_names_order, spec))


_FORMS = "a list, a function that returns one, or the name of a .txt (one file per line), .json or .py file with one"


def read_file_list(given: Any, *, where: str) -> list[Any]:
    """Return the entries of the option ``files``; an entry is a file, or a nested list or dict of files.

    :param given: the entries, a function that returns them, or a file with them
    :param where: prefix of errors
    :raises ConfigError: for another form, or no entries
    :raises DataError: the file is missing or damaged
    """
    if callable(given):
        given = result_of_config(where, given)
    if isinstance(given, str):
        given = _entries_of_file(given, where)
    if not isinstance(given, (list, tuple)):
        raise DatasetError("%s is %s, but must be %s" % (where, shown(given), _FORMS))
    if not given:
        raise DatasetError("%s is empty" % where)
    return list(given)


def _entries_of_file(path: str, where: str) -> Any:
    suffix = os.path.splitext(path)[1]
    if suffix not in (".txt", ".json", ".py"):
        raise DatasetError("%s is %r, but must be %s" % (where, path, _FORMS))
    with safe_files.wanted_by(where):
        text = safe_files.read_text(path)
    if suffix == ".txt":
        lines = (line.split("#", 1)[0].strip() for line in text.splitlines())
        return [line for line in lines if line]
    try:
        return json.loads(text) if suffix == ".json" else ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as exc:
        raise DatasetDataError("%s: file %r holds no list: %s" % (where, path, exc)) from None


def size_of_entry(entry: Any, *, where: str) -> int:
    """Return the bytes of all files of an entry; DataError for a missing one."""
    size = 0
    for path in _files_of(entry):
        try:
            size += file_size(os.fspath(path))  # a number would be that of an open file
        except UserError as exc:  # of a remote file
            raise DatasetDataError("%s: %s" % (where, exc)) from exc
        except (OSError, TypeError, ValueError) as exc:
            raise DatasetDataError(
                "%s: file %s cannot be found: %s (current directory: %s)"
                % (where, shown(path), getattr(exc, "strerror", None) or exc, os.getcwd())
            ) from None
    return size


def _files_of(entry: Any) -> Iterator[Any]:
    if isinstance(entry, Mapping):
        entry = list(entry.values())
    if isinstance(entry, (list, tuple)):
        for part in entry:
            yield from _files_of(part)
    else:
        yield entry


def bins_by_size(sizes: Sequence[int], num_bins: int) -> list[list[int]]:
    """Distribute entries over bins of about the same size, keeping their order; no bin is empty.

    A bin is closed where that brings it closest to its share of what was left when it was begun.

    :param sizes: of the entries, at least as many as bins
    :return: the indices of the entries of each bin
    """
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    number, filled, left = 0, 0, sum(sizes)
    share = left / num_bins
    for index, size in enumerate(sizes):
        untouched = num_bins - number - bool(bins[number])
        left -= size  # what is left behind this entry
        begins_next = False
        ends = False
        if len(sizes) - index <= untouched:  # as many entries as empty bins
            begins_next = bool(bins[number])
        elif number < num_bins - 1 and filled + size > share:
            ends = not bins[number] or abs(filled + size - share) <= abs(filled - share)
            begins_next = not ends
        if begins_next:
            number, filled = number + 1, 0
            share = left / (num_bins - number)
        bins[number].append(index)
        filled += size
        if ends:
            number, filled = number + 1, 0
            share = left / (num_bins - number)
    return bins


class Preparation:
    """A dataset that is made in a thread, or where it is first needed.

    :param make: makes it
    """

    def __init__(self, make: Callable[[], Dataset]):
        self._make = make
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._result: Optional[Dataset] = None
        self._dropped = False

    @property
    def is_ours(self) -> bool:
        """Return whether this process made it; a thread is not there after a fork."""
        return self._pid == os.getpid()

    def start(self) -> None:
        """Make it in a thread, with its index; an error shows when the result is needed, where it is made again."""
        threading.Thread(target=self._try, daemon=True).start()

    def _try(self) -> None:
        try:
            _ = self.result().num_seqs  # reads an index that is read on demand, and copies remote files
        except Exception:
            self._result = None
        if self._dropped:
            self.drop()

    def drop(self) -> None:
        """Close the files of the dataset, once it is made; they are reopened if it is still read."""
        self._dropped = True
        if self._result is not None and self.is_ours:
            self._result.close()

    def result(self) -> Dataset:
        """Return the dataset, waiting for it."""
        with self._lock:
            if self._result is None:
                self._result = self._make()
            return self._result
