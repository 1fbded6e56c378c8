"""Some sequences of the training data as they are, and a batch of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import Config
from returnn_tf.config.errors import CommandDataError, CommandError
from returnn_tf.datasets import Dataset, batch_options_from_config, dataset_from_config
from returnn_tf.datasets.config import without_auto
from returnn_tf.datasets.core.batches.batch import Batch
from returnn_tf.datasets.core.batches.batch_options import derived_keys
from returnn_tf.datasets.core.declared import Declared
from returnn_tf.engine.data.fit import check_fits
from returnn_tf.logging.log import log
from returnn_tf.tensor import Data

MOST_SEQS = 300  # that are read
_SEQS, _FRAMES = 6, 3000  # of the batch
_NO_LIMIT = 1 << 40


@dataclasses.dataclass(frozen=True)
class Sample:
    """A sequence.

    :param index: position in the corpus
    :param arrays: by data key, [time, ...] or []
    """

    index: int
    tag: str
    arrays: Mapping[str, NDArray[Any]]

    def length(self, key: str) -> Optional[int]:
        """Return the number of frames of a key; None if it has no time axis."""
        value = self.arrays[key]
        return len(value) if value.ndim else None

    @property
    def longest(self) -> int:
        """Return the largest number of frames of all keys."""
        return max((len(value) for value in self.arrays.values() if value.ndim), default=1)


class Samples:
    """Sequences of a dataset, and the dataset that they come from.

    :param used: the data keys that the network needs
    :param name: of the dataset in the config
    :param most: sequences to read
    :raises ConfigError: there is no such dataset, it lacks a key, or it is not what extern_data declares
    :raises DataError: it can't be read
    """

    def __init__(self, config: Config, used: Mapping[str, Data], name: str = "train", most: int = MOST_SEQS) -> None:
        dataset = dataset_from_config(config, name)
        if dataset is None:
            raise CommandError("sanity: there is no dataset 'train'. It reads training data.")
        self.dataset: Dataset = dataset
        self.name = name
        self.used = {key: data for key, data in used.items() if data.batch_axis is not None}
        self._derived = derived_keys(self.used, dataset.data_keys)
        self.all: list[Sample] = []
        for key in [key for key in self.used if key in dataset.data_keys]:
            remark = check_fits(dataset, name, key, self.used[key])
            if remark:
                log.warn(remark)
        for batch in self._batches(max_seqs=1, batch_size=_NO_LIMIT):
            self.all.append(_sample(batch, self.used))
            if len(self.all) == most:
                break
        if not self.all:
            raise CommandDataError(
                "sanity: the dataset %r has no sequences. returnn-tf data info shows what it reads" % name
            )
        options = batch_options_from_config(without_auto(config), train=True)
        self._limit = options.get("batch_size", _NO_LIMIT)
        #: The limits that leave sequences out of training.
        self.length_limits = {key: options[key] for key in ("min_seq_length", "max_seq_length") if options.get(key)}

    def _batches(self, **options: Any) -> Any:
        keys = [key for key in self.used if key in self.dataset.data_keys or key in self._derived]
        missing = sorted(set(self.used) - set(keys))
        if missing:
            raise CommandError(
                "The dataset %r has no data key %s, which the network needs; it has: %s."
                % (self.name, ", ".join(map(repr, missing)), ", ".join(self.dataset.data_keys))
            )
        return self.dataset.batches(1, used_data_keys=keys, **options)

    def batch(self, bad: set[int]) -> Batch:
        """Return a batch of sequences of different lengths, neither very short nor very long.

        :param bad: corpus indices of sequences to leave out
        """
        good = sorted((each for each in self.all if each.index not in bad), key=lambda each: each.longest)
        if not good:
            raise CommandDataError("sanity: all sequences that were read are unusable, see above")
        places = np.linspace(0.2, 0.8, min(_SEQS, len(good))) * (len(good) - 1)
        middle = [good[place] for place in sorted({int(place) for place in places})]
        while len(middle) > 1 and middle[-1].longest * len(middle) > _FRAMES:
            middle.pop()
        declared = {key: Declared.of(data) for key, data in self.used.items()}
        options = {"max_seqs": len(middle), "batch_size": _NO_LIMIT, "declared": declared}
        batch: Batch = next(iter(self._batches(seq_order=[each.index for each in middle], **options)))
        return batch

    def numbers(self, key: str) -> list[Sample]:
        """Return the sequences that have numbers in a key, which the dataset delivers."""
        if key in self._derived:
            return []
        return [each for each in self.all if key in each.arrays and each.arrays[key].dtype.kind in "iuf"]

    def too_long(self) -> list[Sample]:
        """Return the sequences which fit into no batch."""
        limits = self._limit if isinstance(self._limit, Mapping) else dict.fromkeys(self.used, self._limit)
        return [
            each
            for each in self.all
            if any((each.length(key) or 0) > limit for key, limit in limits.items() if key in each.arrays)
        ]

    def within_limits(self) -> int:
        """Return the number of sequences within the length limits."""
        order = [each.index for each in self.all]
        return sum(1 for _ in self._batches(seq_order=order, max_seqs=1, batch_size=_NO_LIMIT, **self.length_limits))

    def close(self) -> None:
        """Close the dataset."""
        self.dataset.close()


def _sample(batch: Batch, used: Mapping[str, Data]) -> Sample:
    arrays = {}
    for key in used:
        if key in batch.feed:
            value = np.asarray(batch.feed[key][0])
            size = batch.feed.get(key + "/size0")
            arrays[key] = value if size is None else value[: int(size[0])]
    return Sample(int(batch.seq_indices[0]), str(batch.seq_tags[0]), arrays)
