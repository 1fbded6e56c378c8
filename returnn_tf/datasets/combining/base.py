"""Base of datasets that read from other datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.config import ConfigError
from returnn_tf.datasets.combining.inner import inner_dataset, refuse_own_order
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.share import Chosen
from returnn_tf.datasets.core.window import window_spec


def takes_tags(dataset: Dataset) -> bool:
    """Return whether sequences of a dataset can be chosen by their tags."""
    return not dataset.is_stream or "seq_list" in taken_by(dataset)


def taken_by(dataset: Dataset) -> frozenset[str]:
    """Return how sequences can be chosen if the dataset is a stream."""
    taken: frozenset[str] = getattr(dataset, "takes", frozenset())
    return taken


def difference(first: Mapping[str, DataSpec], other: Mapping[str, DataSpec]) -> str:
    """Return in what the format of a dataset differs from that of the first one, to be completed by its name.

    Empty: each key of the first dataset has its dim and axes in the other one, too.
    """
    for key, spec in first.items():
        got = other.get(key)
        if got is None or (got.dim, got.ndim) != (spec.dim, spec.ndim):
            text = "no data" if got is None else "dim %d and %d axes" % (got.dim, got.ndim)
            return "key %r has %s, but dim %d and %d axes" % (key, text, spec.dim, spec.ndim)
    return ""


class CombiningDataset(Dataset):
    """A dataset that reads from others, the inner datasets.

    Inner datasets inherit the offset of the random seeds and the shard; order, parts and chunks are their own.
    A subclass implements ``open_epoch`` by the inner epochs, so that streams can be among them.
    """

    #: how the sequences of an epoch can be chosen if it is a stream, see `StreamDataset`
    takes: frozenset[str] = frozenset(("seq_list", "seq_order"))

    def __init__(self, **given: Any):
        self._specs: Optional[dict[str, DataSpec]] = None
        super().__init__(**given)

    def inner_dataset(self, spec: Any, name: str) -> Dataset:
        """Create an inner dataset.

        :param spec: as for ``Dataset.from_config``
        :param name: of the inner dataset, for messages
        :raises ConfigError: begins with this dataset
        """
        return inner_dataset(self, spec, name)

    def setup(self) -> None:
        """Check the options that every combining dataset has."""
        if self.opts.shuffle_frames_of_nseqs:
            raise ConfigError(
                "%s: shuffle_frames_of_nseqs acts on the inner datasets; move it into them" % self._owner()
            )

    def check_inner_order(self) -> None:
        """Refuse options on the order, for datasets whose order is that of the inner ones.

        :raises ConfigError: names the option
        """
        refuse_own_order(self)

    def wrap(self, spec: Any) -> None:
        """Create ``inner``, the only inner dataset, which makes the order."""
        self.check_inner_order()
        self.inner: Any = self.inner_dataset(spec, "%s_dataset" % self.name)
        self.is_stream = self.inner.is_stream
        self.takes = taken_by(self.inner) if self.is_stream else self.takes

    def make_specs(self) -> Mapping[str, DataSpec]:
        """Return the format by data key, before ``window``."""
        raise NotImplementedError("%s.make_specs" % type(self).__name__)

    @property
    def data_specs(self) -> dict[str, DataSpec]:  # type: ignore[override]
        """Return the format by data key; where an inner dataset is a stream, this may read its first sequence."""
        if self._specs is None:
            specs = dict(self.make_specs())
            if self.opts.window > 1 and "data" in specs:
                specs["data"] = window_spec(specs["data"], self.opts.window, self._owner())
            self._specs = specs
        return self._specs

    def check_format(self) -> None:
        """Report mistakes in the format when the dataset is created; a stream is not read for that."""
        if not self.is_stream:
            assert self.data_specs is not None

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Read the data of one sequence."""
        return self.read_again(index, epoch, keys, 0)

    def read_again(self, index: int, epoch: int, keys: Sequence[str], nth: int) -> dict[str, NDArray[Any]]:
        """Read a sequence that the epoch had before."""
        reader = self.open_epoch(epoch, list(keys), Chosen.single(index, nth))
        try:
            return reader.sequence(0).data
        finally:
            reader.close()
