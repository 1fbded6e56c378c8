"""AnythingDataset: zeros for any sequence that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DatasetError
from returnn_tf.config.options import option
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.declared import specs_of_templates
from returnn_tf.datasets.core.epoch import Epoch
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.share import ALL, Chosen


@register_dataset()
class AnythingDataset(Dataset):
    """Endless zeros in a given format, as a placeholder; a sequence of any tag exists.

    >>> from returnn_tf.datasets import Dataset
    >>> dataset = Dataset.from_config({"class": "AnythingDataset", "data_keys": {"data": {"dim": 3}}})
    >>> [seq.data["data"].tolist() for seq in dataset.sequences(1, seq_list=["a"])]
    [[[0.0, 0.0, 0.0]]]
    """

    @dataclass
    class Options(Dataset.Options):
        data_keys: dict[str, Any] = option(
            help="data key -> options as in extern_data; the first one is the input. Axes of size None have one entry"
        )

    def setup(self) -> None:
        """Make the zeros."""
        specs = specs_of_templates(self.opts.data_keys, where="%s: option 'data_keys'" % self._owner())
        self._zeros: dict[str, NDArray[Any]] = {}
        for key, spec in specs.items():
            shape = ((1,) if spec.ndim else ()) + tuple(n or 1 for n in spec.shape)
            self._zeros[key] = np.full(shape, "", object) if spec.dtype == "object" else np.zeros(shape, spec.dtype)
        self.data_specs = self.windowed(specs)

    @property
    def num_seqs(self) -> None:
        """Return None: endless."""
        return None

    @property
    def target_list(self) -> list[str]:
        """Return all keys but the first."""
        return list(self.data_specs)[1:]

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the zeros."""
        return {key: self._zeros[key] for key in keys}

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> Epoch:
        """Return the sequences of an epoch by position, to be closed."""
        if chosen.seq_list is None:
            epoch_reader = super().open_epoch(epoch, keys, chosen)
            assert isinstance(epoch_reader, Epoch)
            return epoch_reader
        if chosen.seq_order is not None:
            raise DatasetError("%s: give seq_list or seq_order, not both" % self._owner())
        order = np.arange(len(chosen.seq_list))
        order = order if chosen.share is None else chosen.share.of_order(order)
        return _TaggedEpoch(self, epoch, order, keys, chosen.seq_list)


class _TaggedEpoch(Epoch):
    """An epoch whose sequences have the given tags."""

    def __init__(self, dataset: Any, epoch: int, order: NDArray[Any], keys: list[str], tags: Sequence[str]):
        super().__init__(dataset, epoch, order, keys)
        self._tags = tags

    def tag(self, position: int) -> str:
        """Return the given tag."""
        return self._tags[self.index(position)]
