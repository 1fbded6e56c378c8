"""Base class of all datasets: options, format, order, sequences, batches; and the forms in which a config names one."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ConfigError, DatasetDataError, DatasetError, did_you_mean
from returnn_tf.config.options import declared_options, from_options, log_inert
from returnn_tf.config.user_code import result_of_config
from returnn_tf.datasets.core import safe_files
from returnn_tf.datasets.core import seq_order as orders
from returnn_tf.datasets.core.base_options import BaseOptions
from returnn_tf.datasets.core.batches.batch import Batch
from returnn_tf.datasets.core.batches.batch_options import BatchOptions
from returnn_tf.datasets.core.batches.batching import BatchStats, iterate_batches
from returnn_tf.datasets.core.batches.slices import Cutting, Draws
from returnn_tf.datasets.core.data_spec import DataSpec, Example, stack_frames, window_spec
from returnn_tf.datasets.core.declared import Declared
from returnn_tf.datasets.core.epoch import Epoch, EpochReader
from returnn_tf.datasets.core.registry import DATASETS, FORMS, short, value_of_text
from returnn_tf.datasets.core.share import ALL, Chosen, Share
from returnn_tf.datasets.core.tags import TagTable
from returnn_tf.datasets.files import with_local_copies
from returnn_tf.logging.log import log
from returnn_tf.util.html import folded, paragraph, shortened, table

# options of the dataset which a call of ``batches`` may replace
_CUTTING = ("chunking", "min_chunk_size", "chunking_variance", "context_window")
_MAX_COMPARED = 2000  # comparing spellings takes long, and a corpus can have millions of tags
#: What stands in HDF files for the names of labels that have none.
LABEL_PLACEHOLDER = "dummy-label"
_RELEASED = 16  # how often sequences that were delivered are dropped


class Dataset:
    """A corpus of sequences.

    A subclass declares its own options in the nested class ``Options``, initialises itself in ``setup`` and implements
    ``data_specs``, ``num_seqs``, ``tag``, ``read``, and ``lengths`` and ``seq_lengths`` if lengths are known without
    reading.

    >>> from returnn_tf.datasets import Dataset
    >>> dataset = Dataset.from_config({"class": "Task12AX", "num_seqs": 3})
    >>> [seq.tag for seq in dataset.sequences(epoch=1)]
    ['seq-0', 'seq-1', 'seq-2']
    """

    #: the format by data key; set by a subclass in `setup`, or implemented
    data_specs: dict[str, DataSpec]
    #: whether sequences are read in order only, see ``stream.StreamDataset``
    is_stream = False
    #: whether the settings of a config for the order apply: evaluation data is sorted by length unless its options say
    #: otherwise; not if the order is that of an inner dataset or of a stream
    takes_default_order = True
    #: whether the lengths may order the sequences of this and other datasets together
    estimates_lengths = True
    #: whether a tag that several sequences have stands for the last of them in lists, else for the first one
    takes_last_of_tag = False

    @dataclass
    class Options(BaseOptions):
        """Options in the config; a subclass adds its own ones in a nested class of this name."""

    def __init__(self, **given: Any):
        self._given = given
        self.name: str = given.get("name") or type(self).__name__
        self.opts: Any = from_options(self.Options, with_local_copies(given), where=self._owner(), none_is_absent=True)
        self.opts.window += 1 - self.opts.window % 2  # an even window is raised by one
        if self.opts.skip_broken_seqs and self.opts.shuffle_frames_of_nseqs:
            raise DatasetError(
                "%s: skip_broken_seqs cannot go with shuffle_frames_of_nseqs, which reads several sequences together"
                % self._owner()
            )
        self.epoch_order = orders.EpochOrder(self.opts, self._owner(), self.parse_ordering)
        self._warn_of_unused_lengths("seq_order_seq_lens_file")
        self._cutting()  # so that a mistake is reported now
        self._tag_table: Optional[TagTable] = None
        self.batch_stats = BatchStats()
        #: those that it reads from
        self.inner_datasets: weakref.WeakSet[Dataset] = weakref.WeakSet()
        self.setup()

    @classmethod
    def from_config(cls, spec: Any, **defaults: Any) -> Dataset:
        """Create a dataset from a dict with "class", a function returning one, or its string form.

        :param defaults: options for those that the spec does not set
        :raises ConfigError: for an unknown class or option, with the nearest known one
        """
        if isinstance(spec, Dataset):
            return spec
        dataset_cls, options = parse_dataset_spec(spec)
        return make_dataset(dataset_cls, options, defaults)

    @property
    def given(self) -> dict[str, Any]:
        """Return the options that were given, without defaults."""
        return dict(self._given)

    @property
    def described(self) -> str:
        """Return name and class, for messages."""
        return self._owner()

    def _owner(self) -> str:
        return "dataset %r (%s)" % (self.name, type(self).__name__)

    def _wanted_by(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Prefix errors in the file of an option by dataset and option."""
        return safe_files.wanted_by("%s: option %r" % (self._owner(), name))

    def __repr__(self) -> str:
        return "<%s %r>" % (type(self).__name__, self.name)

    def __reduce__(self) -> Any:
        # files are reopened, cached data is not copied
        return _rebuild, (type(self), self._given)

    def _repr_html_(self) -> str:
        count = "endless" if self.endless and not self.is_stream else self.num_seqs
        title = "%s %r, %s" % (type(self).__name__, self.name, "a stream" if count is None else "sequences: %s" % count)
        keys = []
        for key, spec in self.data_specs.items():
            names = shortened(", ".join(self.label_names.get(key, ())))
            keys.append((key, spec.dtype, "labels" if spec.sparse else "values", spec.dim or "", names))
        options = [(name, shortened(repr(value))) for name, value in self._given.items()]
        header = ("data key", "type", "", "dim", "names")
        return paragraph(title) + table(header, keys, numbers=[3]) + folded("options", table((), options))

    # ---- implemented by subclasses

    def setup(self) -> None:
        """Prepare the dataset; called once with ``self.opts`` checked and complete."""

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences in the corpus; None: endless, or a stream."""
        raise NotImplementedError("%s.num_seqs" % type(self).__name__)

    @property
    def endless(self) -> bool:
        """Return whether an epoch never ends."""
        return self.num_seqs is None

    def tag(self, index: int) -> str:
        """Return the name of the sequence at this position in the corpus."""
        return "seq-%d" % index

    def tags_many(self, indices: Sequence[int]) -> list[str]:
        """Return the tags of several sequences."""
        return [self.tag(index) for index in indices]

    def digest_of_tags(self) -> Optional[bytes]:
        """Return a digest of all tags in their order, if it is found faster than the tags; else None.

        With it, a sequence chosen by its tag is read as one chosen by its index.
        """
        return None

    def file_of(self, index: int) -> str:
        """Return the file of the sequence at this position in the corpus, or ""."""
        return ""

    def seq_lengths(self) -> Optional[NDArray[Any]]:
        """Return lengths [num_seqs] by which ``sorted`` etc. order the corpus.

        None: these orders then count as ``default``.
        """
        return None

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read the data of one sequence: key -> [time, ...].

        :param index: position in the corpus
        :param epoch: from 1; matters where data is generated or distorted
        :param keys: the keys which are needed
        """
        raise NotImplementedError("%s.read" % type(self).__name__)

    def read_again(self, index: int, epoch: int, keys: Sequence[str], nth: int) -> dict[str, NDArray[Any]]:
        """Read a repeated sequence of an epoch; different from `read` only if ``redraws``.

        :param nth: number of earlier occurrences
        """
        return self.read(index, epoch, keys)

    @property
    def redraws(self) -> bool:
        """Return whether data is random: drawn again for each occurrence of a sequence in an epoch."""
        return False

    def read_many(self, indices: NDArray[Any], epoch: int, keys: Sequence[str]) -> dict[str, Sequence[NDArray[Any]]]:
        """Read the first of these sequences, and as many of the others as is quicker than one by one; by key.

        :param indices: the next sequences to read, at least one
        """
        return {key: [value] for key, value in self.read(int(indices[0]), epoch, keys).items()}

    def close(self) -> None:
        """Close the files of the inner datasets; a dataset with files closes its own, and reopens them on demand."""
        for inner in list(self.inner_datasets):
            inner.close()

    def lengths_many(self, indices: NDArray[Any]) -> Optional[dict[str, list[int]]]:
        """Return the lengths of several sequences by key, or None to use `lengths` for each."""
        return None

    def lengths(self, index: int) -> Optional[dict[str, int]]:
        """Return frames by key without reading the data, or None if that is impossible."""
        return None

    @property
    def read_threads(self) -> int:
        """Return the number of threads that may call `read` at once, see `ReadAheadOptions`; 1: no reading ahead."""
        return 1

    # ---- format

    @property
    def data_keys(self) -> list[str]:
        """Return all data keys."""
        return list(self.data_specs)

    @property
    def target_list(self) -> list[str]:
        """Return all data keys but "data"."""
        return [key for key in self.data_specs if key != "data"]

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return (dim, number of axes with time) by key, before ``window``; a dict where a dataset says more."""
        return dict(self._dims_by_key())

    def _dims_by_key(self) -> dict[str, tuple[int, int]]:
        window = self.opts.window
        return {key: (spec.dim // (window if key == "data" else 1), spec.ndim) for key, spec in self.data_specs.items()}

    @property
    def all_outputs(self) -> dict[str, Any]:
        """Return ``num_outputs`` with all data keys, also those which some datasets leave out there."""
        return {**self._dims_by_key(), **self.num_outputs}

    @property
    def num_inputs(self) -> int:
        """Return the dim of "data", before ``window``; 0 if there is no such key."""
        declared = self.all_outputs.get("data")
        return int(declared[0]) if isinstance(declared, (tuple, list)) else 0

    @property
    def labels(self) -> dict[str, list[str]]:
        """Return class names by key, where known."""
        return {key: list(spec.labels) for key, spec in self.data_specs.items() if spec.labels is not None}

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Return `labels` of the keys where each class has a name; many HDF files have a placeholder instead."""
        named = {key: names for key, names in self.labels.items() if names and list(names) != [LABEL_PLACEHOLDER]}
        dims = {key: self.data_specs[key].dim for key in named if key in self.data_specs}
        # HDF files have the dim 1 where it was not known
        return {key: names for key, names in named.items() if dims.get(key, 0) in (0, 1, len(names))}

    def stored_dtype(self, key: str) -> str:
        """Return the type in which a copy of the dataset stores a data key."""
        return self.data_specs[key].dtype

    @property
    def leaves_out(self) -> str:
        """Return the option that lets an epoch lack sequences of its order; empty: none."""
        return "skip_broken_seqs" if self.opts.skip_broken_seqs else ""

    def windowed(self, specs: Mapping[str, DataSpec]) -> dict[str, DataSpec]:
        """Return formats with the option ``window`` applied to key "data"."""
        if self.opts.window > 1 and "data" in specs:
            return {**specs, "data": window_spec(specs["data"], self.opts.window, self._owner())}
        return dict(specs)

    def with_window(self, data: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Apply the option ``window`` to key "data"."""
        if self.opts.window > 1 and "data" in data:
            data = {**data, "data": stack_frames(data["data"], self.opts.window)}
        return data

    # ---- order

    @staticmethod
    def parse_ordering(text: Any) -> orders.Ordering:
        """Parse the option ``seq_ordering``."""
        return orders.parse_ordering(text)

    def _warn_of_unused_lengths(self, name: str) -> None:
        """Log that an option with lengths has no effect, if it is given and the order does not depend on them."""
        if getattr(self.opts, name) and self.epoch_order.ignores_lengths:
            log_inert(self._owner(), name, "seq_ordering %r needs no lengths" % (self.opts.seq_ordering,))

    @property
    def corpus_facts(self) -> orders.CorpusFacts:
        """Return the facts that determine the order of an epoch."""
        return orders.CorpusFacts(self.num_seqs, self.seq_lengths, self.tags_many)

    def needed_lengths(self) -> NDArray[Any]:
        """Return the lengths [num_seqs] for an order; ConfigError if they are not known."""
        return self.epoch_order.lengths(self.corpus_facts)

    def ordering(self, epoch: int) -> orders.Ordering:
        """Return the order of this epoch."""
        return self.epoch_order.at(epoch)

    @property
    def random_seed_offset(self) -> int:
        """Return the offset of the seed of each epoch."""
        return self.epoch_order.seed_offset

    def epoch_seed(self, epoch: int, *, nth: int = 1) -> int:
        """Return the random seed of an epoch."""
        return self.epoch_order.seed(epoch, nth=nth)

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices (int64) in the order in which this epoch reads them; None: endless, in corpus order.

        Applied in this order: full order, unique tags, partition and shard, repetition, filter.

        :raises DataError: the corpus is empty or the filter leaves nothing
        """
        return self.epoch_order.order(epoch, self.ordering(epoch), self.corpus_facts)

    @property
    def tag_table(self) -> TagTable:
        """Return where each tag of the corpus, which has an end, is; it is made when it is needed first."""
        if self._tag_table is None:
            assert self.num_seqs is not None
            self._tag_table = TagTable(self.num_seqs, self.tags_many, last=self.takes_last_of_tag)
        return self._tag_table

    def indices_of_tags(self, tags: Sequence[str]) -> NDArray[Any]:
        """Return corpus indices of sequences given by tag; DataError for an unknown one."""
        if self.num_seqs is None:
            raise DatasetError(
                "%s is endless, so its sequences cannot be chosen by tag; give it num_seqs" % self._owner()
            )
        indices = self.tag_table.find(tags)
        missing = np.flatnonzero(indices < 0)
        if len(missing):
            tag, known = tags[missing[0]], self.tags_many(range(min(self.num_seqs, _MAX_COMPARED)))
            raise DatasetDataError("%s has no sequence %r. %s" % (self._owner(), tag, did_you_mean(tag, known)))
        return indices

    def chosen_order(self, epoch: int, chosen: Chosen) -> Optional[NDArray[Any]]:
        """Return the corpus indices to read, those of the share if there is one; None: endless, in corpus order.

        :raises ConfigError: the dataset is endless, but only a share is wanted
        """
        order = self.explicit_order(epoch, chosen)
        if chosen.share is None:
            return order
        if order is None:
            raise DatasetError("%s is endless, so it can't be split among processes; give it num_seqs" % self._owner())
        return chosen.share.of_order(order)

    def chosen_occurrences(self, epoch: int, chosen: Chosen) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return `chosen_order`, and the number of earlier occurrences of each in the epoch, other shares included."""
        order = self.explicit_order(epoch, chosen)
        assert order is not None
        nth = orders.occurrences(order) if chosen.nth is None else chosen.nth
        return (order, nth) if chosen.share is None else (chosen.share.of_order(order), chosen.share.of_order(nth))

    def explicit_order(self, epoch: int, chosen: Chosen) -> Optional[NDArray[Any]]:
        """Return the corpus indices that are listed, or those of the epoch; the share is not regarded."""
        if chosen.seq_list is not None and chosen.seq_order is not None:
            raise DatasetError("%s: give seq_list or seq_order, not both" % self._owner())
        if chosen.seq_list is not None:
            return self.indices_of_tags(chosen.seq_list)
        if chosen.seq_order is None:
            return self.seq_order(epoch)
        order = np.asarray(chosen.seq_order, np.int64).reshape(-1)
        wrong = np.flatnonzero((order < 0) | (order >= (np.inf if self.num_seqs is None else self.num_seqs)))
        if len(wrong):
            raise DatasetDataError(
                "%s has no sequence at position %d, only %s" % (self._owner(), order[wrong[0]], self.num_seqs)
            )
        return order

    # ---- iteration

    def sequences(
        self,
        epoch: int = 1,
        *,
        seq_list: Optional[Sequence[str]] = None,
        seq_order: Optional[Sequence[int]] = None,
        start: int = 0,
        resume: Any = None,
        share: Optional[Share] = None,
        by_itself: Optional[bool] = None,
    ) -> Iterator[Example]:
        """Yield all sequences of an epoch in its order, uncut.

        :param epoch: from 1
        :param seq_list: tags to read instead of the epoch's own order
        :param seq_order: corpus indices to read instead of it
        :param start: position to begin at
        :param resume: that of the sequence before it
        :param share: the part of all these to read
        :param by_itself: see `Chosen`
        """
        chosen = Chosen(seq_list, seq_order, share, by_itself)
        with contextlib.closing(self.open_epoch(epoch, self.data_keys, chosen)) as reader:
            position, num_used = start, 0
            if start:
                reader.jump(start, resume)
            while reader.has(position):
                if not reader.is_usable(position):
                    position += 1
                else:
                    end, found = reader.sequences(position)
                    yield from found
                    num_used += end - position
                    position = end
                if position % _RELEASED == 1:
                    reader.release(position)
            reader.report_broken(num_used)

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> EpochReader:
        """Return the sequences of an epoch by position, to be closed.

        :param keys: the data keys to read
        """
        if not self.redraws:
            return Epoch(self, epoch, self.chosen_order(epoch, chosen), keys)
        order, nth = self.chosen_occurrences(epoch, chosen)
        return Epoch(self, epoch, order, keys, nth)

    def _cutting(self, replaced: Optional[Mapping[str, Any]] = None) -> Cutting:
        """Parse the options on chunks and context, some of which may be replaced."""
        opts = {name: getattr(self.opts, name) for name in _CUTTING}
        try:
            return Cutting.parse(**{**opts, **(replaced or {})})
        except ConfigError as exc:
            raise DatasetError("%s: %s" % (self._owner(), exc)) from None

    def batches(
        self,
        epoch: int = 1,
        *,
        start_batch: int = 0,
        start_seq: int = 0,
        resume: Optional[Mapping[str, Any]] = None,
        seq_list: Optional[Sequence[str]] = None,
        seq_order: Optional[Sequence[int]] = None,
        declared: Optional[Mapping[str, Declared]] = None,
        share: Optional[Share] = None,
        by_itself: Optional[bool] = None,
        **options: Any,
    ) -> Iterator[Batch]:
        """Iterate over the batches of an epoch in its order, padded and ready for ``Network.run``.

        ``batch_stats`` counts the dropped sequences, during and after the iteration.

        :param epoch: from 1
        :param start_batch: number of batches to skip without reading them, to resume another run
        :param start_seq: position after the last sequence of these batches, if it is known: then their sequences need
            not be planned again, which takes long where lengths are known only by reading
        :param resume: ``Batch.resume`` of the last of these batches
        :param seq_list: tags to read instead of the epoch's own order
        :param seq_order: corpus indices to read instead of it
        :param declared: data key -> declaration to check its data against, see ``Declared.checked``
        :param share: the part of the sequences that this process reads
        :param by_itself: see `Chosen`
        :param options: `GivenBatchOptions`, and chunking, min_chunk_size, chunking_variance, context_window
            instead of the options of the dataset
        """
        chosen = Chosen(seq_list, seq_order, share, by_itself)
        reader, batch_options, cutting = self._opened_for_batches(epoch, chosen, options, declared or ())
        if len(batch_options.counted) > len(batch_options.keys):
            reader.only_count(set(batch_options.counted).difference(batch_options.keys))
        return self._iterate_batches(reader, batch_options, cutting, (start_batch, start_seq, resume), declared)

    def slice_lengths(
        self, epoch: int, seq_order: Sequence[int], **options: Any
    ) -> Iterator[tuple[int, dict[str, int]]]:
        """Yield each sequence or chunk that batches may have: its position in the order, and its frames by key.

        Nothing is read where the lengths are known otherwise.

        :param seq_order: corpus indices, in the order in which to look at them
        :param options: as of `batches`
        """
        reader, batch_options, cutting = self._opened_for_batches(epoch, Chosen(seq_order=seq_order), options)
        with contextlib.closing(reader):
            counted, rng = batch_options.counted, Draws(self.epoch_seed(epoch))
            for position, starts, ends in cutting.slices(
                reader, counted, recurrent_net=batch_options.recurrent_net, rng=rng
            ):
                lengths = dict(zip(counted, map(int.__sub__, ends, starts)))
                if batch_options.uses(lengths):
                    yield position, {key: lengths[key] for key in batch_options.keys}
                reader.release(position)

    @property
    def knows_lengths(self) -> bool:
        """Return whether the lengths of the sequences are known without reading them."""
        first = np.zeros([1], np.int64)
        return self.lengths_many(first) is not None or self.lengths(0) is not None

    def _opened_for_batches(
        self, epoch: int, chosen: Chosen, options: Mapping[str, Any], derived: Collection[str] = ()
    ) -> tuple[EpochReader, BatchOptions, Cutting]:
        """Return the sequences of an epoch, to be closed, with the checked options of its batches.

        :param options: as of `batches`
        :param derived: data keys that are wanted, see `BatchOptions.with_derived`
        """
        cutting = self._cutting({name: options[name] for name in _CUTTING if name in options})
        options = {name: value for name, value in options.items() if name not in _CUTTING}
        owner = "batches of %s" % self._owner()
        batch_options = BatchOptions.make(owner, self.data_keys, options).with_derived(derived)
        keys = batch_options.keys
        if cutting.chunking is not None or not batch_options.recurrent_net:
            for key, option in batch_options.named.items():
                log.warn(
                    "%s: %s of key %r has no effect: parts of sequences are made of the used keys only: %s."
                    % (self._owner(), option, key, ", ".join(keys)),
                    once=True,
                )
            batch_options = batch_options.counting(keys)
        else:
            limited = set(batch_options.limited_keys).intersection(self.keys_in(epoch))
            batch_options = batch_options.counting({*keys, *limited})
            keys = batch_options.counted
        return self.open_epoch(epoch, keys, chosen), batch_options, cutting

    def keys_in(self, epoch: int) -> list[str]:
        """Return the data keys of the sequences of an epoch."""
        return self.data_keys

    def _iterate_batches(
        self,
        reader: EpochReader,
        options: BatchOptions,
        cutting: Cutting,
        start: tuple[int, int, Optional[Mapping[str, Any]]],
        declared: Optional[Mapping[str, Declared]],
    ) -> Iterator[Batch]:
        """Yield the batches from a start on.

        :param start: number of the first batch, position of its first sequence or 0, ``resume`` of the batch before
        """
        rng = Draws(self.epoch_seed(reader.epoch))
        stats = self.batch_stats = BatchStats()
        batch, seq, resume = start
        with contextlib.closing(reader):
            yield from iterate_batches(
                reader,
                options,
                cutting,
                rng=rng,
                stats=stats,
                start_batch=batch,
                start_seq=seq,
                resume=resume,
                declared=declared,
            )


def _rebuild(cls: type[Dataset], given: dict[str, Any]) -> Dataset:
    """Recreate a dataset in another process."""
    return cls(**given)


def make_dataset(dataset_cls: type[Dataset], options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Dataset:
    """Create a dataset with the given options, and those defaults that its class knows."""
    known = set(declared_options(dataset_cls.Options))
    if not dataset_cls.takes_default_order:
        known.discard("seq_ordering")
    return dataset_cls(**{**{name: value for name, value in defaults.items() if name in known}, **options})


def parse_dataset_spec(spec: Any, names: Mapping[str, Any] = {}) -> tuple[Any, dict[str, Any]]:
    """Return the dataset class and its options.

    :param spec: dict with "class"; function returning one; list of HDF files; or a string: "{...}" (a dict as literal),
        "config:name", "config:name(...)" or "config:name[...]" (of the config), "ClassName:key=value,...", or a comma
        list of HDF files
    :param names: what "config:..." may refer to
    :raises ConfigError: for anything else, or an unknown class
    """
    for _ in range(10):  # a function may return a string, "config:name" may be a function, ...
        if isinstance(spec, Mapping):
            return _class_and_options(spec)
        if isinstance(spec, Dataset):
            return type(spec), spec.given
        if hasattr(spec, "__dataset__") and not isinstance(spec, type):  # a dataset of a user
            found: tuple[Any, dict[str, Any]] = spec.__dataset__()
            return found
        if isinstance(spec, type) and issubclass(spec, Dataset) and spec.num_seqs is Dataset.num_seqs:
            raise DatasetError("a dataset is given as %s; the class %s has no num_seqs" % (FORMS, spec.__name__))
        if callable(spec):
            spec = result_of_config("the function that returns a dataset", spec)
        elif isinstance(spec, (list, tuple)) and spec and all(isinstance(entry, str) for entry in spec):
            spec = {"class": "HDFDataset", "files": list(spec)}
        elif isinstance(spec, str):
            spec = value_of_text(spec.strip(), names)
        else:
            break
    raise DatasetError("a dataset is given as %s, not as %r" % (FORMS, spec))


def _class_and_options(spec: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    options = dict(spec)
    name = options.pop("class", None)
    if name is None:
        raise DatasetError('the dataset %s has no "class"; write e.g. {"class": "HDFDataset", ...}' % (short(spec),))
    if hasattr(name, "__dataset_class__"):  # a class of a user
        found: tuple[Any, dict[str, Any]] = name.__dataset_class__(options)
        return found
    return dataset_class(name), options


def dataset_class(name: Any) -> type[Any]:
    """Return the class registered as ``name`` or ``name + "Dataset"``; a class itself is returned.

    :raises ConfigError: unknown name; gives the nearest known one
    """
    if isinstance(name, type) and issubclass(name, Dataset):
        return name
    if not isinstance(name, str):
        raise DatasetError('dataset "class" must be a name or a class of datasets, not %r' % (name,))
    cls = DATASETS.find(name)
    if cls is None:
        raise DatasetError(DATASETS.unknown(name))
    return cls
