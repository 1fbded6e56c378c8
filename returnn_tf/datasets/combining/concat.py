"""ConcatDataset and MultiEpochDataset: the epochs of other datasets one after the other."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DatasetDataError, DatasetError, did_you_mean
from returnn_tf.config.options import at_least, option
from returnn_tf.datasets.combining.base import (
    ChainedEpoch,
    CombiningDataset,
    CorpusOfInner,
    FormatOfInner,
    Link,
    difference,
    inner_dataset,
    refuse_own_order,
)
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.seq_order import occurrences
from returnn_tf.datasets.core.share import ALL, Chosen


@register_dataset()
class ConcatDataset(CombiningDataset):
    """Several datasets of the same format, one after the other in each epoch, each in its own order.

    >>> from returnn_tf.datasets import Dataset
    >>> parts = [{"class": "Task12AX", "num_seqs": 2}, {"class": "Task12AX", "num_seqs": 1}]
    >>> dataset = Dataset.from_config({"class": "ConcatDataset", "datasets": parts})
    >>> [seq.tag for seq in dataset.sequences(epoch=1)]
    ['seq-0', 'seq-1', 'seq-0']
    """

    takes_default_order = False

    @dataclass
    class Options(CombiningDataset.Options):
        datasets: list[Any] = option(help="the datasets, in the order in which they are read")

    def setup(self) -> None:
        """Create the inner datasets, and compare their formats."""
        super().setup()
        refuse_own_order(self)
        if not self.opts.datasets:
            raise DatasetError("%s: option 'datasets' is empty" % self._owner())
        specs = enumerate(self.opts.datasets)
        self.parts = [inner_dataset(self, spec, "%s_%d" % (self.name, number)) for number, spec in specs]
        self.is_stream = any(part.is_stream for part in self.parts)
        self.takes = frozenset() if self.is_stream else self.takes
        counts = [part.num_seqs or 0 for part in self.parts]
        self._starts = [0, *itertools.accumulate(counts)]
        self.check_format()

    def make_specs(self) -> Mapping[str, DataSpec]:
        """Return the format of the first dataset, which all have."""
        for part in self.parts[1:]:
            self._check_same_format(self.parts[0], part)
        return self.parts[0].data_specs

    def _check_same_format(self, first: Dataset, other: Dataset) -> None:
        differs = difference(first.data_specs, other.data_specs)
        if differs:
            raise DatasetError(
                "%s: dataset %r: %s in dataset %r; the datasets need the same format"
                % (self._owner(), other.name, differs, first.name)
            )

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return (dim, number of axes with time) by key."""
        return self.parts[0].num_outputs

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the sum over the datasets; None: at least one is endless or a stream."""
        return None if any(part.num_seqs is None for part in self.parts) else self._starts[-1]

    @property
    def endless(self) -> bool:
        """Return whether an epoch never ends."""
        return any(part.endless for part in self.parts)

    def _locate(self, index: int) -> tuple[Dataset, int]:
        number = bisect.bisect_right(self._starts, index) - 1
        return self.parts[number], index - self._starts[number]

    def tag(self, index: int) -> str:
        """Return the tag in the dataset to which the sequence belongs."""
        part, local = self._locate(index)
        return part.tag(local)

    def file_of(self, index: int) -> str:
        """Return the file in the dataset to which the sequence belongs."""
        part, local = self._locate(index)
        return part.file_of(local)

    def lengths(self, index: int) -> Optional[dict[str, int]]:
        """Return frames by key, where the dataset to which the sequence belongs knows them."""
        part, local = self._locate(index)
        return part.lengths(local)

    @property
    def redraws(self) -> bool:
        """Return whether data of one of the datasets is random."""
        return any(part.redraws for part in self.parts)

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices in the order of this epoch; None: endless, or a stream."""
        orders = [part.seq_order(epoch) for part in self.parts]
        known: list[NDArray[Any]] = [order + start for order, start in zip(orders, self._starts) if order is not None]
        return np.concatenate(known) if len(known) == len(orders) else None

    def indices_of_tags(self, tags: Sequence[str]) -> NDArray[Any]:
        """Return corpus indices of sequences given by tag.

        The list is cut by the sizes of the datasets. A tag that its dataset does not have may be of any other one.
        """
        if self.num_seqs is None:
            return super().indices_of_tags(tags)  # which refuses
        tables = [{part.tag(index): index for index in reversed(range(part.num_seqs or 0))} for part in self.parts]
        indices = []
        for position, tag in enumerate(tags):
            own = min(bisect.bisect_right(self._starts, position), len(tables)) - 1
            found = [number for number in [own, *range(len(tables))] if tag in tables[number]]
            if not found:
                known = [known for table in tables for known in itertools.islice(table, 1000)]
                raise DatasetDataError("%s has no sequence %r. %s" % (self._owner(), tag, did_you_mean(tag, known)))
            indices.append(self._starts[found[0]] + tables[found[0]][tag])
        return np.asarray(indices, np.int64)

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> ChainedEpoch:
        """Return the sequences of an epoch by position, to be closed."""
        if not chosen.is_explicit:
            readers = [part.open_epoch(epoch, keys) for part in self.parts]
            links = [Link(reader, start) for reader, start in zip(readers, self._starts)]
            return ChainedEpoch(self, epoch, keys, links, chosen.share)
        order = self.explicit_order(epoch, chosen)
        links = []
        if order is None:
            order = np.zeros(0, np.int64)
        nth = occurrences(order) if chosen.nth is None else chosen.nth
        done = 0
        for number, run in itertools.groupby(order, lambda index: bisect.bisect_right(self._starts, index) - 1):
            start = self._starts[number]
            indices = [int(index) - start for index in run]
            of_run = nth[done : done + len(indices)] if self.parts[number].redraws else None
            of_part = Chosen(seq_order=indices, by_itself=chosen.by_itself, nth=of_run)
            links.append(Link(self.parts[number].open_epoch(epoch, keys, of_part), start))
            done += len(indices)
        return ChainedEpoch(self, epoch, keys, links, chosen.share)


@register_dataset()
class MultiEpochDataset(FormatOfInner, CorpusOfInner, CombiningDataset):
    """Several epochs of another dataset as one.

    >>> from returnn_tf.datasets import Dataset
    >>> inner = {"class": "Task12AX", "num_seqs": 3, "partition_epoch": 3}
    >>> dataset = Dataset.from_config({"class": "MultiEpochDataset", "dataset": inner, "multi_epoch": 2})
    >>> [seq.tag for seq in dataset.sequences(epoch=2)]
    ['seq-2', 'seq-0']
    """

    takes_default_order = False

    @dataclass
    class Options(CombiningDataset.Options):
        dataset: Union[dict[str, Any], str, Any] = option(help="the inner dataset")
        multi_epoch: int = option(help="number of its epochs in one epoch", check=at_least(1))

    def setup(self) -> None:
        """Create the inner dataset."""
        super().setup()
        self.wrap(self.opts.dataset)
        if self.inner.endless:
            raise DatasetError("%s: the inner dataset is endless; give it num_seqs" % self._owner())
        self.check_format()

    def make_specs(self) -> Mapping[str, DataSpec]:
        """Return the format of the inner dataset."""
        return self.inner.data_specs

    @property
    def endless(self) -> bool:
        """Return False: an epoch ends."""
        return False

    def lengths(self, index: int) -> Optional[dict[str, int]]:
        """Return frames by key, if the inner dataset knows them."""
        return self.inner.lengths(index)

    def inner_epochs(self, epoch: int) -> range:
        """Return the epochs of the inner dataset that make up this one."""
        count = self.opts.multi_epoch
        return range((epoch - 1) * count + 1, epoch * count + 1)

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices in the order of this epoch; None: a stream."""
        orders = [self.inner.seq_order(number) for number in self.inner_epochs(epoch)]
        known = [order for order in orders if order is not None]
        return np.concatenate(known) if len(known) == len(orders) else None

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> ChainedEpoch:
        """Return the sequences of an epoch by position, to be closed.

        An explicit list or order is read once, as in the first of the inner epochs.
        """
        numbers = self.inner_epochs(epoch)
        if chosen.is_explicit:
            links = [Link(self.inner.open_epoch(numbers[0], keys, chosen.of_all_processes()))]
        else:
            links = [Link(self.inner.open_epoch(number, keys)) for number in numbers]
        return ChainedEpoch(self, epoch, keys, links, chosen.share)
