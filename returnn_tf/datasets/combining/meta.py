"""MetaDataset: several streams of the same sequences from several datasets, joined by tag."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DataError, DatasetDataError, DatasetError, did_you_mean
from returnn_tf.config.options import option
from returnn_tf.datasets.combining.base import CombiningDataset, error_of_inner, inner_dataset, takes_tags
from returnn_tf.datasets.core import safe_files
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec, Example, num_frames
from returnn_tf.datasets.core.epoch import Epoch, EpochReader
from returnn_tf.datasets.core.generating import dim_and_ndim
from returnn_tf.datasets.core.per_key import reference_key
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.share import ALL, Chosen
from returnn_tf.datasets.files.index_file import SharedIndex, shared_result
from returnn_tf.logging.log import log

_BLOCK = 1 << 14
_NAMES = 1 << 18  # that are looked up at once
#: Share of a corpus below which its sequences are found one by one.
_FEW = 0.1
_TAG_BYTES = 12  # as most names take
_ORDER_OF_CONTROL = ("partition_epoch", "repeat_epoch", "seq_list_filter_file", "unique_seq_tags", "seq_lens_file")


@register_dataset()
class MetaDataset(CombiningDataset):
    """Several streams of the same sequences, such as features and alignments, joined by tag.

    The order of an epoch is that of the control dataset, in its own order, parts and filter. Without one, the options
    on the order act on the sequences of the dataset of "data", or on those of ``seq_list_file``. The other datasets may
    have further sequences, and may be streams that read given tags.

    >>> from returnn_tf.datasets import Dataset
    >>> inner = {"class": "Task12AX", "num_seqs": 2}
    >>> options = {"datasets": {"a": inner, "b": inner}, "data_map": {"data": ("a", "data"), "out": ("b", "classes")}}
    >>> Dataset.from_config({"class": "MetaDataset", **options}).num_outputs
    {'data': (9, 2), 'out': (2, 1)}
    """

    @dataclass
    class Options(CombiningDataset.Options):
        datasets: dict[str, Any] = option(help="name -> dataset")
        data_map: Union[dict[str, Any], list[Any]] = option(help="data key -> (name of a dataset, key in it)")
        seq_order_control_dataset: Optional[str] = option(None, help="the dataset that determines the order")
        seq_list_file: Union[None, str, dict[str, Any]] = option(
            None,
            help="tags that belong together: a text file (.gz allowed) or pickled list for all datasets, or different "
            "lists by name: a dict of files, or a pickled dict of lists",
        )
        seq_lens_file: Optional[str] = option(None, help="JSON: tag -> data key -> length, for the order; '' = none")
        data_dims: Optional[dict[str, Any]] = option(None, help="data key -> [dim, ndim], to check the datasets")

    def setup(self) -> None:
        """Create the datasets that ``data_map`` names, and read the lists of tags."""
        super().setup()
        self._data_map = parse_data_map(self.opts.data_map, owner=self._owner())
        for name, _ in self._data_map.values():
            self._check_name("data_map", name)
        self._default = self._default_name()
        used = {name for name, _ in self._data_map.values()} | {self._default}
        self.inner: dict[str, Dataset] = {
            name: inner_dataset(self, spec, "%s_%s" % (self.name, name))
            for name, spec in self.opts.datasets.items()
            if name in used
        }
        self.is_stream = any(inner.is_stream for inner in self.inner.values())
        self._places: dict[str, NDArray[Any]] = {}  # name -> corpus index there of each sequence; -1: it is missing
        self._has_control = self.opts.seq_order_control_dataset is not None
        self._lists: Optional[dict[str, Sequence[str]]] = None
        if self.opts.seq_list_file:
            self._lists = read_tag_lists(self.opts.seq_list_file, list(self.inner), owner=self._owner())
        self._check_control()
        self.check_format()

    def _check_name(self, where: str, name: str) -> None:
        if name not in self.opts.datasets:
            raise DatasetError(
                "%s: option %r names the dataset %r, which 'datasets' lacks. %s"
                % (self._owner(), where, name, did_you_mean(name, self.opts.datasets))
            )

    def _default_name(self) -> str:
        """Return the name of the dataset whose tags are those of the result."""
        control: Optional[str] = self.opts.seq_order_control_dataset
        if control is not None:
            self._check_name("seq_order_control_dataset", control)
            return control
        if "data" not in self._data_map:
            raise DatasetError(
                "%s: without a key 'data' in data_map, seq_order_control_dataset must name the dataset that determines "
                "the order" % self._owner()
            )
        return self._data_map["data"][0]

    def _check_control(self) -> None:
        default = self.inner[self._default]
        if self._has_control and default.num_seqs is None:
            raise DatasetError(
                "%s: dataset %r can't control the order, since it %s; name another one, or use seq_list_file"
                % (self._owner(), self._default, "is endless" if default.endless else "is read as a stream")
            )
        if self._lists is None and default.num_seqs is None:
            raise DatasetError(
                "%s: dataset %r does not know its tags in advance, so seq_order_control_dataset must name another one, "
                "or seq_list_file must give the tags" % (self._owner(), self._default)
            )
        for name, inner in self.inner.items():
            if not takes_tags(inner):
                raise DatasetError(
                    "%s: dataset %r can't read sequences by tag, only all in order" % (self._owner(), name)
                )
        if not self._has_control:
            self._warn_of_unused_lengths("seq_lens_file")
        for name in _ORDER_OF_CONTROL:
            if self._has_control and getattr(self.opts, name) not in (1, None, False, ""):
                text = "%s: option %r has no effect, since dataset %r controls the order"
                log.warn(text % (self._owner(), name, self._default))

    # ---- format

    def make_specs(self) -> Mapping[str, DataSpec]:
        """Return the format of the mapped keys, in sort order."""
        specs = {}
        for key, (name, subkey) in sorted(self._data_map.items()):
            known = self.inner[name].data_specs
            if subkey not in known:
                raise DatasetError(
                    "%s: option 'data_map': dataset %r has no key %r. %s"
                    % (self._owner(), name, subkey, did_you_mean(subkey, known))
                )
            specs[key] = known[subkey]
        if self.opts.data_dims is not None:
            check_dims(self.opts.data_dims, specs, owner=self._owner())
        return specs

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return (dim, number of axes with time) by key, as the inner datasets do."""
        outputs = {name: dataset.all_outputs for name, dataset in self.inner.items()}
        return {key: outputs[name][subkey] for key, (name, subkey) in sorted(self._data_map.items())}

    @property
    def labels(self) -> dict[str, list[str]]:
        """Return class names by key, where known."""
        inner = {name: dataset.labels for name, dataset in self.inner.items()}
        return {key: inner[name][sub] for key, (name, sub) in sorted(self._data_map.items()) if sub in inner[name]}

    # ---- the corpus: the rows of the lists of tags, or the sequences of the default dataset

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences of the lists of tags, or of the default dataset."""
        return self.inner[self._default].num_seqs if self._lists is None else len(self._lists[self._default])

    def tag(self, index: int) -> str:
        """Return the tag in the default dataset."""
        return self.inner[self._default].tag(index) if self._lists is None else self._lists[self._default][index]

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices in the order of this epoch."""
        if not self._has_control:
            return super().seq_order(epoch)
        order = self.inner[self._default].seq_order(epoch)
        if self._lists is not None and order is not None:
            self._check_list_of_control(order)
        return order

    def _check_list_of_control(self, order: NDArray[Any]) -> None:
        """Check that the list of tags has the order of the corpus of the control dataset."""
        control, tags = self.inner[self._default], (self._lists or {})[self._default]
        for index in order:
            found = tags[index] if index < len(tags) else None
            if found != control.tag(int(index)):
                raise DatasetDataError(
                    "%s: seq_list_file must have the order of the control dataset %r, but its entry %d is %s, not %r"
                    % (
                        self._owner(),
                        self._default,
                        index,
                        "missing" if found is None else repr(found),
                        control.tag(index),
                    )
                )

    def seq_lengths(self) -> Optional[NDArray[Any]]:
        """Return lengths [num_seqs]: those of ``seq_lens_file``, else the frames of "data", which may be read."""
        if self.opts.seq_lens_file:
            tags = [self.tag(index) for index in range(self.num_seqs or 0)]
            return np.array(read_lengths(self.opts.seq_lens_file, tags, owner=self._owner()))
        name, subkey = self._data_map.get("data") or self._data_map[reference_key(self._data_map)]
        inner = self.inner[name]
        if inner.is_stream:
            return None
        indices = range(self.num_seqs or 0) if self._lists is None else inner.indices_of_tags(self._lists[name])
        return _lengths(inner, np.asarray(indices), subkey)

    # ---- reading

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> JoinedEpoch:
        """Return the sequences of an epoch by position, to be closed.

        :raises DataError: an inner dataset lacks sequences
        """
        whole = self.explicit_order(epoch, chosen)
        assert whole is not None
        order = whole if chosen.share is None else chosen.share.of_order(whole)
        self._check_counts()
        subkeys: dict[str, list[str]] = {}
        for name, subkey in sorted({self._data_map[key] for key in keys}):
            subkeys.setdefault(name, []).append(subkey)
        wanted = {name: self._wanted(name, order) for name in subkeys}
        readers = {}
        for name, keys_there in subkeys.items():
            inner = self.inner[name]
            redraws = chosen.share is not None and inner.redraws  # then it depends on what other processes read
            found = self._wanted(name, whole) if redraws else wanted[name]
            try:
                of_inner = Chosen(
                    seq_list=found if isinstance(found, list) else None,
                    seq_order=None if isinstance(found, list) else found,
                    share=chosen.share if redraws else None,
                    by_itself=chosen.by_itself,
                    nth=chosen.nth if inner.redraws else None,
                )
                readers[name] = inner.open_epoch(epoch, keys_there, of_inner)
            except DataError as exc:
                raise DatasetDataError("%s: %s" % (self._owner(), error_of_inner(inner.name, exc))) from None
        return JoinedEpoch(self, epoch, order, keys, readers, wanted, self._data_map)

    @property
    def redraws(self) -> bool:
        """Return whether data of one of the datasets is random."""
        return any(inner.redraws for inner in self.inner.values())

    def _wanted(self, name: str, order: NDArray[Any]) -> Union[list[str], NDArray[Any]]:
        """Return the tags to read from a dataset, or their indices in its corpus where these are known."""
        if name == self._default and (self._lists is None or self._has_control):
            return order
        if self._lists is not None:
            tags = self._lists[name]
            return [tags[index] for index in order]
        places = self._places_in(name, len(order))
        found = None if places is None else places[order]
        return self.inner[self._default].tags_many(order.tolist()) if found is None or (found < 0).any() else found

    def _places_in(self, name: str, num_wanted: int) -> Optional[NDArray[Any]]:
        """Return the index of each sequence in the corpus of another dataset, for all epochs and processes.

        None: the datasets do not know the digests of their tags, or few sequences are wanted.
        """
        default, inner = self.inner[self._default], self.inner[name]
        count = default.num_seqs or 0
        if name in self._places or num_wanted < count * _FEW:
            return self._places.get(name)
        digests = [default.digest_of_tags(), inner.digest_of_tags()]
        if None in digests:
            return None

        def find() -> SharedIndex:
            found = np.empty(count, np.int32 if (inner.num_seqs or 0) < 1 << 31 else np.int64)
            for start in range(0, count, _NAMES):
                part = range(start, min(start + _NAMES, count))
                found[start : part.stop] = inner.tag_table.find(default.tags_many(part))
            return SharedIndex({"places": found})

        content = [digest and digest.hex() for digest in digests] + [inner.takes_last_of_tag]
        index = shared_result("places", content, _TAG_BYTES * 2 * count, find)
        self._places[name] = index.arrays["places"]
        return self._places[name]

    def _check_counts(self) -> None:
        for name, inner in self.inner.items():
            count, wanted = inner.num_seqs, self.num_seqs
            if count is not None and wanted is not None and count < wanted:
                raise DatasetDataError(
                    "%s: dataset %r has only %d sequences, fewer than the %d of %s"
                    % (
                        self._owner(),
                        name,
                        count,
                        wanted,
                        "dataset %r" % self._default if self._lists is None else "seq_list_file",
                    )
                )


def _lengths(inner: Dataset, indices: NDArray[Any], key: str) -> NDArray[np.int64]:
    """Return the lengths of sequences, many at once where the dataset knows them."""
    found = np.empty(len(indices), np.int64)
    for start in range(0, len(indices), _BLOCK):
        part = indices[start : start + _BLOCK]
        known = inner.lengths_many(part)
        found[start : start + _BLOCK] = (
            [_length(inner, index, key) for index in part.tolist()] if known is None else known[key]
        )
    return found


def _length(inner: Dataset, index: int, key: str) -> int:
    lengths = inner.lengths(index)
    return num_frames(inner.read(index, 1, [key])[key]) if lengths is None else lengths[key]


class JoinedEpoch(Epoch):
    """The sequences of several inner epochs at the same position, as one.

    :param dataset: the outer dataset
    :param order: its corpus indices in the order of reading
    :param readers: name of an inner dataset -> its epoch in this order; closed with this one
    :param wanted: name -> tags in this order, or indices in the corpus of the inner dataset
    :param data_map: data key -> (name, key of the inner dataset)
    """

    def __init__(
        self,
        dataset: Any,
        epoch: int,
        order: NDArray[Any],
        keys: list[str],
        readers: Mapping[str, EpochReader],
        wanted: Mapping[str, Union[list[str], NDArray[Any]]],
        data_map: Mapping[str, tuple[str, str]],
    ):
        super().__init__(dataset, epoch, order, keys)
        self._readers = readers
        self._wanted = wanted
        self._data_map = data_map

    def only_count(self, keys: Collection[str]) -> None:
        """Deliver some of the keys no more; inner ones are read for them only if their lengths are not known."""
        super().only_count(keys)
        needed = {self._data_map[key] for key in self.needed}
        for name, reader in self._readers.items():
            reader.only_count([key for key in reader.keys if (name, key) not in needed])

    def resume(self, position: int) -> Any:
        """Return what the inner epochs need to go on behind this position, by name."""
        found = {name: reader.resume(position) for name, reader in self._readers.items()}
        return {name: resume for name, resume in found.items() if resume is not None} or None

    def jump(self, position: int, resume: Any = None) -> None:
        """Pass over the sequences before a position in all inner epochs."""
        for name, reader in self._readers.items():
            reader.jump(position, (resume or {}).get(name))

    def file(self, position: int) -> str:
        """Return the files of the sequence at this position, or ""."""
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
        reader, wanted = self._readers[name], self._wanted[name]
        if not reader.has(position):
            missing = "; %r is missing" % wanted[position] if isinstance(wanted, list) else ""
            text = "%s: dataset %r ends after %d sequences%s"
            raise DatasetDataError(text % (self.place(position), name, position, missing))
        if isinstance(wanted, list) and reader.tag(position) != wanted[position]:
            raise DatasetDataError(
                "%s: dataset %r has the sequence %r here, but should have %r; is it of another corpus?"
                % (self.place(position), name, reader.tag(position), wanted[position])
            )
        if not isinstance(wanted, list) and reader.index(position) != wanted[position]:
            raise DatasetDataError(
                "%s: dataset %r has the sequence %r here, since it leaves this one out; the others would not fit it"
                % (self.place(position), name, reader.tag(position))
            )

    def _read(self, position: int) -> Example:
        sequences = {}
        for name, reader in self._readers.items():
            self._check(name, position)
            if reader.needed:
                sequences[name] = reader.sequence(position)
        data = {}
        for key in self.needed:
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


def read_tag_lists(given: Any, names: Collection[str], *, owner: str) -> dict[str, Sequence[str]]:
    """Return the tags of each dataset; the tags at one position belong together.

    :param given: a file for all datasets, or a dict of dataset -> file. A file is a text file with one tag per line
        (.gz allowed) or a pickle (.pkl) of a list, or of a dict of dataset -> list
    :param names: the datasets
    :param owner: prefix of errors
    :raises ConfigError: the dict lacks a dataset
    :raises DataError: a file is missing or holds something else, lacks a dataset, or the lists differ in length
    """
    where = "%s: option 'seq_list_file'" % owner
    if isinstance(given, Mapping):
        for name in names:
            if name not in given:
                raise DatasetError("%s has no list for dataset %r. %s" % (where, name, did_you_mean(name, given)))
        lists: dict[str, Sequence[str]] = {name: _one_list(given[name], name, where) for name in names}
    elif isinstance(given, str):
        lists = _lists_of_file(given, names, where)
    else:
        raise DatasetError("%s is %r, but must be a file, or a dict of dataset -> file" % (where, given))
    _check_sizes(lists, where)
    return lists


def read_lengths(path: str, tags: Sequence[str], *, owner: str) -> list[float]:
    """Return the lengths of sequences, from a JSON file of tag -> length, or tag -> data key -> length.

    :raises DataError: the file is missing or holds something else, or lacks a sequence
    """
    where = "%s: seq_lens_file %r" % (owner, path)
    with safe_files.wanted_by("%s: option 'seq_lens_file'" % owner):
        text = safe_files.read_text(path)
    try:
        table = json.loads(text)
    except json.JSONDecodeError as exc:
        raise DatasetDataError("%s is no JSON: %s" % (where, exc)) from None
    if not isinstance(table, Mapping):
        raise DatasetDataError("%s must hold a dict of tag -> lengths, not %s" % (where, type(table).__name__))
    return [_length_of(tag, table.get(tag), where) for tag in tags]


def _length_of(tag: str, entry: Any, where: str) -> float:
    if isinstance(entry, Mapping) and entry:
        entry = entry[reference_key(entry)]
    if not safe_files.is_length(entry):
        raise DatasetDataError("%s has no length of sequence %r" % (where, tag))
    length: float = entry
    return length


def _lists_of_file(path: str, names: Collection[str], where: str) -> dict[str, Sequence[str]]:
    if not path.endswith((".pkl", ".pkl.gz")):
        return dict.fromkeys(names, _text_list(path, where))
    with safe_files.wanted_by(where):
        content = safe_files.read_plain_pickle(path)
    if not isinstance(content, Mapping):
        return dict.fromkeys(names, _checked(content, path, where))
    for name in names:
        if name not in content:
            text = "%s: file %r has no list for dataset %r. %s"
            raise DatasetDataError(text % (where, path, name, did_you_mean(name, [str(known) for known in content])))
    return {name: _checked(content[name], path, where) for name in names}


def _one_list(path: Any, name: str, where: str) -> Sequence[str]:
    if not isinstance(path, str):
        raise DatasetError("%s: the list of dataset %r is %r, but must be a file" % (where, name, path))
    return _lists_of_file(path, [name], where)[name]


def _text_list(path: str, where: str) -> Sequence[str]:
    with safe_files.wanted_by(where):
        tags = safe_files.read_seq_tags(path)
    return _checked(tags, path, where)


def _checked(tags: Any, path: str, where: str) -> Sequence[str]:
    if not isinstance(tags, (list, tuple)):
        raise DatasetDataError("%s: file %r must hold a list of tags, not %s" % (where, path, type(tags).__name__))
    for position, tag in enumerate(tags):
        if not isinstance(tag, str):
            raise DatasetDataError("%s: file %r: entry %d is %r, not a sequence tag" % (where, path, position, tag))
    if not tags:
        raise DatasetDataError("%s: file %r is empty" % (where, path))
    return list(tags)


def _check_sizes(lists: Mapping[str, Sequence[str]], where: str) -> None:
    sizes = {name: len(tags) for name, tags in lists.items()}
    if len(set(sizes.values())) > 1:
        text = ", ".join("%d for %r" % (size, name) for name, size in sizes.items())
        raise DatasetDataError("%s: the lists must be equally long, but there are %s tags" % (where, text))


def parse_data_map(value: Any, *, owner: str) -> dict[str, tuple[str, str]]:
    """Return data key -> (name of a dataset, key in it).

    :param value: such a dict, or a list of its items
    :param owner: prefix of errors
    :raises ConfigError: for another form
    """
    where = "%s: option 'data_map'" % owner
    try:
        entries = dict(value)
    except (TypeError, ValueError):
        entries = {}
    if not entries:
        raise DatasetError("%s is %r, but must be {data key: (name of a dataset, key in it)}" % (where, value))
    for key, entry in entries.items():
        if not isinstance(entry, (tuple, list)) or len(entry) != 2 or not all(isinstance(part, str) for part in entry):
            raise DatasetError("%s: %r: %r must be (name of a dataset, key in it)" % (where, key, entry))
    return {key: (entry[0], entry[1]) for key, entry in entries.items()}


def check_dims(given: Mapping[str, Any], specs: Mapping[str, DataSpec], *, owner: str) -> None:
    """Compare the option ``data_dims`` with the formats of the datasets; more classes than there are may be declared.

    :raises ConfigError: a key is missing or has another format
    """
    where = "%s: option 'data_dims'" % owner
    for key, spec in specs.items():
        if key not in given:
            raise DatasetError("%s lacks the key %r of data_map. %s" % (where, key, did_you_mean(key, given)))
        dim, ndim = dim_and_ndim(given[key], option="data_dims", ndim=spec.ndim, owner=owner)
        fits = dim >= spec.dim if spec.sparse else dim == spec.dim or not spec.dim
        if ndim != spec.ndim or not fits:
            text = "%s: key %r has dim %d and %d axes there, but its dataset has dim %d and %d axes"
            raise DatasetError(text % (where, key, dim, ndim, spec.dim, spec.ndim))
