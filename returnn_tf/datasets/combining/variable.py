"""VariableDataset: another dataset in every epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

from numpy.typing import NDArray

from returnn_tf.config.errors import DatasetError
from returnn_tf.config.options import at_least, option
from returnn_tf.config.user_code import call_with_known, result_of_config
from returnn_tf.datasets.combining.base import (
    ChainedEpoch,
    CombiningDataset,
    Link,
    difference,
    inner_dataset,
    refuse_own_order,
)
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.epoch import EpochReader
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.share import ALL, Chosen


@register_dataset()
class VariableDataset(CombiningDataset):
    """The sequences of the dataset that a function gives for the epoch, in the order of that dataset.

    The function is called with ``epoch`` and ``self``, for epoch 1 also when the dataset is made. The format is that of
    epoch 1; the dataset of a later epoch may lack keys that are not read, and may have others. A dataset is kept for
    the next epochs that give an equal dict.

    >>> train = {
    ...     "class": "VariableDataset",
    ...     "get_dataset": lambda epoch, **_: {"class": "HDFDataset", "files": ["part%d.hdf" % (epoch % 3)]},
    ... }
    """

    is_stream = True
    takes_default_order = False

    @dataclass
    class Options(Dataset.Options):
        get_dataset: Callable[..., Any] = option(help="function of epoch and self that returns a dataset")
        dataset_lru_cache_size: int = option(1, help="number of datasets to keep", check=at_least(1))
        always_same_tags: bool = option(False, help="the datasets of all epochs have the same sequence tags")

    def setup(self) -> None:
        """Create the dataset of epoch 1."""
        super().setup()
        refuse_own_order(self)
        self._cached: list[tuple[Any, Dataset]] = []  # in the order of use
        self._format: dict[str, DataSpec] = {}
        self._epoch = 1
        inner = self.dataset_of(1)
        if not inner.is_stream:
            self._format = dict(inner.data_specs)

    def dataset_of(self, epoch: int) -> Dataset:
        """Return the dataset of an epoch.

        :raises ConfigError: the function gives none, or one of another format
        """
        where = "%s: get_dataset for epoch %d" % (self._owner(), epoch)
        spec = result_of_config(where, lambda: call_with_known(where, self.opts.get_dataset, epoch=epoch, self=self))
        found = next((entry for entry in self._cached if entry[0] is spec or _equal(entry[0], spec)), None)
        if found is None:
            found = spec, self._create(spec, where, epoch)
        else:
            self._cached.remove(found)
        self._cached.append(found)
        while len(self._cached) > self.opts.dataset_lru_cache_size:
            self._cached.pop(0)[1].close()
        self._epoch = epoch
        return found[1]

    def _create(self, spec: Any, where: str, epoch: int) -> Dataset:
        if spec is None:
            raise DatasetError("%s returned None instead of a dataset" % where)
        inner = inner_dataset(self, spec, "%s_epoch%d" % (self.name, epoch))
        known = {key: spec for key, spec in self._format.items() if key in inner.data_specs}
        differs = difference(known, inner.data_specs)
        if differs:
            raise DatasetError("%s: %s in epoch 1" % (where, differs))
        return inner

    def make_specs(self) -> dict[str, DataSpec]:
        """Return the format of epoch 1."""
        self._format = self._format or dict(self.dataset_of(1).data_specs)
        return self._format

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return dims and numbers of axes, as the dataset of epoch 1 declares them."""
        return self._cached[-1][1].num_outputs

    @property
    def num_seqs(self) -> Optional[int]:
        """Return None: it varies."""
        return None

    @property
    def endless(self) -> bool:
        """Return whether the dataset in use is endless."""
        return self._cached[-1][1].endless

    def tag(self, index: int) -> str:
        """Return a tag of the epoch read last; only with ``always_same_tags``."""
        if not self.opts.always_same_tags:
            raise DatasetError(
                "%s has other sequences in every epoch, so their tags are known only while it is read" % self._owner()
            )
        return self.dataset_of(self._epoch).tag(index)

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return the order of the dataset of this epoch: indices in its corpus."""
        return self.dataset_of(epoch).seq_order(epoch)

    def keys_in(self, epoch: int) -> list[str]:
        """Return the data keys of the dataset of this epoch that epoch 1 has, too."""
        inner = self.dataset_of(epoch)
        return [key for key in self.data_keys if key in inner.data_specs]

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> EpochReader:
        """Return the sequences of the dataset of this epoch.

        :raises ConfigError: it lacks one of the keys
        """
        inner = self.dataset_of(epoch)
        missing = [key for key in keys if key not in inner.data_specs]
        if missing:
            raise DatasetError(
                "%s: get_dataset for epoch %d: there is no data key %s, which is read and which epoch 1 has; it has: %s"
                % (self._owner(), epoch, ", ".join(map(repr, missing)), ", ".join(inner.data_keys))
            )
        reader = inner.open_epoch(epoch, keys, chosen)
        return ChainedEpoch(self, epoch, keys, [Link(reader)])


def _equal(first: Any, second: Any) -> bool:
    """Return whether two dicts of options are equal; options such as arrays can't be compared."""
    try:
        return bool(first == second)
    except ValueError:
        return False
