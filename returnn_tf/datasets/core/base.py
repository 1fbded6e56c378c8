"""Base class of all datasets: format, and iteration by sequence and by batch."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError
from returnn_tf.config.options import declared_options
from returnn_tf.datasets.core.batches import blocks
from returnn_tf.datasets.core.batches.batch import Batch, assemble
from returnn_tf.datasets.core.batches.batch_options import BatchOptions
from returnn_tf.datasets.core.batches.batching import BatchStats, SeqFilter, plan_batches
from returnn_tf.datasets.core.batches.chunking import Chunking
from returnn_tf.datasets.core.batches.slices import ContextWindow, iterate_slices
from returnn_tf.datasets.core.batches.whole_seqs import WholeSeqs, is_applicable
from returnn_tf.datasets.core.data_spec import Example
from returnn_tf.datasets.core.declared import Declared
from returnn_tf.datasets.core.epoch import Epoch
from returnn_tf.datasets.core.epoch_reader import EpochReader
from returnn_tf.datasets.core.format import CorpusWithFormat
from returnn_tf.datasets.core.share import ALL, Chosen, Share
from returnn_tf.datasets.core.spec import parse_dataset_spec
from returnn_tf.logging.log import log
from returnn_tf.util.html import folded, paragraph, shortened, table

# options of the dataset which a call of ``batches`` may replace
_CUTTING = ("chunking", "min_chunk_size", "chunking_variance", "context_window")
_RELEASED = 16  # how often sequences that were delivered are dropped


class Dataset(CorpusWithFormat):
    """A corpus of sequences.

    A subclass declares its own options in the nested class ``Options``, initialises itself in ``setup`` and implements
    ``data_specs``, ``num_seqs``, ``tag``, ``read``, and ``lengths`` and ``seq_lengths`` if lengths are known without
    reading.

    >>> from returnn_tf.datasets import Dataset
    >>> dataset = Dataset.from_config({"class": "Task12AX", "num_seqs": 3})
    >>> [seq.tag for seq in dataset.sequences(epoch=1)]
    ['seq-0', 'seq-1', 'seq-2']
    """

    #: whether sequences are read in order only, see ``stream.StreamDataset``
    is_stream = False
    #: whether the settings of a config for the order apply: evaluation data is sorted by length unless its options say
    #: otherwise; not if the order is that of an inner dataset or of a stream
    takes_default_order = True
    #: whether the lengths may order the sequences of this and other datasets together
    estimates_lengths = True

    def __init__(self, **given: Any):
        super().__init__(**given)
        self._chunk_options()  # so that a mistake is reported now
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

    # ---- implemented by subclasses, in addition to num_seqs, tag and seq_lengths

    def setup(self) -> None:
        """Prepare the dataset; called once with ``self.opts`` checked and complete."""

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read the data of one sequence: key -> [time, ...].

        :param index: position in the corpus
        :param epoch: from 1; matters where data is generated or distorted
        :param keys: the keys which are needed
        """
        raise NotImplementedError("%s.read" % type(self).__name__)

    def read_again(self, index: int, epoch: int, keys: Sequence[str], nth: int) -> dict[str, NDArray[Any]]:
        """Read a sequence that the epoch had before; different from `read` only if ``redraws``.

        :param nth: how many times
        """
        return self.read(index, epoch, keys)

    @property
    def redraws(self) -> bool:
        """Return whether data is random, and thus drawn anew each time that a sequence occurs in an epoch."""
        return False

    def read_together(
        self, indices: NDArray[Any], epoch: int, keys: Sequence[str]
    ) -> dict[str, Sequence[NDArray[Any]]]:
        """Read the first of these sequences, and as many of the others as is quicker than one by one; by key.

        :param indices: the next sequences to read, at least one
        """
        return {key: [value] for key, value in self.read(int(indices[0]), epoch, keys).items()}

    def close(self) -> None:
        """Close the files of the inner datasets; a dataset with files closes its own, and reopens them on demand."""
        for inner in list(self.inner_datasets):
            inner.close()

    def lengths_together(self, indices: NDArray[Any]) -> Optional[dict[str, list[int]]]:
        """Return the lengths of several sequences by key, or None if `lengths` is to be asked for each of them."""
        return None

    def lengths(self, index: int) -> Optional[dict[str, int]]:
        """Return frames by key without reading the data, or None if that is impossible."""
        return None

    @property
    def read_threads(self) -> int:
        """Return how many threads may call `read` at the same time, see `ReadAheadOptions`; 1: it is not read ahead."""
        return 1

    # ---- iteration

    def sequences(
        self,
        epoch: int = 1,
        *,
        seq_list: Optional[Sequence[str]] = None,
        seq_order: Optional[Sequence[int]] = None,
        start: int = 0,
        share: Optional[Share] = None,
        by_itself: Optional[bool] = None,
    ) -> Iterator[Example]:
        """Iterate over all sequences of an epoch in its order, uncut.

        :param epoch: from 1
        :param seq_list: tags to read instead of the epoch's own order
        :param seq_order: corpus indices to read instead of it
        :param start: position to begin at
        :param share: the part of all these to read
        :param by_itself: see `Chosen`
        """
        chosen = Chosen(seq_list, seq_order, share, by_itself)
        with contextlib.closing(self.open_epoch(epoch, self.data_keys, chosen)) as reader:
            if reader.together is not None and blocks.is_applicable(self):
                yield from blocks.sequences_by_blocks(reader, reader.together, start)
                return
            num_used = 0
            for position in itertools.count():
                if not reader.has(position):
                    break
                if position >= start and reader.is_usable(position):
                    num_used += 1
                    yield reader.sequence(position)
                if position % _RELEASED == 0:
                    reader.release(position + 1)
            reader.report_broken(num_used)

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> EpochReader:
        """Return the sequences of an epoch by position, to be closed.

        :param keys: the data keys to read
        """
        if not self.redraws:
            return Epoch(self, epoch, self.chosen_order(epoch, chosen), keys)
        order, nth = self.chosen_occurrences(epoch, chosen)
        return Epoch(self, epoch, order, keys, nth)

    def _chunk_options(self, replaced: Optional[Mapping[str, Any]] = None) -> dict[str, Any]:
        opts = {name: getattr(self.opts, name) for name in _CUTTING}
        opts.update(replaced or {})
        try:
            return {
                "chunking": Chunking.parse(
                    opts["chunking"],
                    min_chunk_size=opts["min_chunk_size"] or 0,
                    variance=opts["chunking_variance"] or 0.0,
                ),
                "context": ContextWindow.parse(opts["context_window"]),
            }
        except ConfigError as exc:
            raise ConfigError("%s: %s" % (self._owner(), exc)) from None

    def batches(
        self,
        epoch: int = 1,
        *,
        start_batch: int = 0,
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
        :param seq_list: tags to read instead of the epoch's own order
        :param seq_order: corpus indices to read instead of it
        :param declared: data key -> declaration to check its data against, see ``Declared.checked``
        :param share: the part of the sequences that this process reads
        :param by_itself: see `Chosen`
        :param options: `GivenBatchOptions`, and chunking, min_chunk_size, chunking_variance, context_window
            instead of the options of the dataset
        """
        cutting = self._chunk_options({name: options.pop(name) for name in _CUTTING if name in options})
        batch_options = BatchOptions.make("batches of %s" % self._owner(), self.data_keys, options)
        keys = batch_options.keys
        if cutting["chunking"] is not None or not batch_options.recurrent_net:
            for key, option in batch_options.named.items():
                _warn_once(
                    "%s: %s of key %r has no effect: parts of sequences are made of the used keys only: %s."
                    % (self._owner(), option, key, ", ".join(keys))
                )
            batch_options = batch_options.counting(keys)
        elif len(keys) < len(self.data_keys):
            known = self._keys_of_known_lengths()
            keys = [key for key in self.data_keys if key in keys or (key in batch_options.named and key not in known)]
            batch_options = batch_options.counting({*keys, *batch_options.named, *known})
        reader = self.open_epoch(epoch, keys, Chosen(seq_list, seq_order, share, by_itself))
        return self._iterate_batches(reader, batch_options, cutting, start_batch, declared)

    def _keys_of_known_lengths(self) -> Collection[str]:
        """Return the keys whose lengths are known without reading any data, of the sequences of all inner datasets."""
        if self.is_stream or self.num_seqs == 0:
            return ()
        if not all(inner._keys_of_known_lengths() for inner in list(self.inner_datasets)):
            return ()
        return self.lengths_together(np.array([0])) or self.lengths(0) or ()

    def _iterate_batches(
        self,
        reader: EpochReader,
        options: BatchOptions,
        cutting: Mapping[str, Any],
        start_batch: int,
        declared: Optional[Mapping[str, Declared]],
    ) -> Iterator[Batch]:
        rng = random.Random(self.epoch_seed(reader.epoch))
        stats = self.batch_stats = BatchStats()
        with contextlib.closing(reader):
            if reader.together is not None and is_applicable(self, options, cutting):
                seq_filter = SeqFilter(options, epoch=reader, rng=rng, stats=stats)
                whole = WholeSeqs(reader, reader.together, options, stats, seq_filter)
                for number, (positions, lengths) in enumerate(whole.plans()):
                    if number >= start_batch:
                        yield whole.batch(positions, lengths, number=number, declared=declared)
                    reader.release(positions[-1])
                return
            slices = iterate_slices(reader, options.counted, recurrent_net=options.recurrent_net, rng=rng, **cutting)
            for number, plan in enumerate(plan_batches(slices, options, epoch=reader, rng=rng, stats=stats)):
                if number >= start_batch:
                    yield assemble(plan, reader, options.keys, number=number, declared=declared)
                reader.release(plan.parts[-1].position)
            stats.num_broken = len(reader.broken)
            reader.report_broken(stats.num_seen)


@functools.lru_cache(maxsize=256)
def _warn_once(text: str) -> None:
    log.warn(text)


def _rebuild(cls: type[Dataset], given: dict[str, Any]) -> Dataset:
    """Recreate a dataset in another process."""
    return cls(**given)


def make_dataset(dataset_cls: type[Dataset], options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Dataset:
    """Create a dataset with the given options, and those defaults that its class knows."""
    known = set(declared_options(dataset_cls.Options))
    if not dataset_cls.takes_default_order:
        known.discard("seq_ordering")
    return dataset_cls(**{**{name: value for name, value in defaults.items() if name in known}, **options})
