"""The class from which all datasets of configs derive that are written for RETURNN's interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compat.user_datasets.interface import DatasetInterface
from returnn_tf.config.options import from_options
from returnn_tf.datasets.core.base import Dataset, dataset_class
from returnn_tf.datasets.core.base_options import BaseOptions


class OrderOfUser(Dataset):
    """Computes orders for a dataset of a user, whose sequences it does not read."""

    def __init__(self, num_seqs: int, lengths: Optional[Callable[[int], Any]], **given: Any):
        self._count = num_seqs
        self._length = lengths
        super().__init__(**given)

    @property
    def num_seqs(self) -> int:
        """Return the number of sequences."""
        return self._count

    def seq_lengths(self) -> Optional[NDArray[Any]]:
        """Return the lengths that the user's function gives."""
        return None if self._length is None else np.array([_length(self._length(i)) for i in range(self._count)])


def _length(value: Any) -> Any:
    """Return the length for the order, from a number or from lengths by key."""
    if hasattr(value, "keys"):
        return value["data"] if "data" in value.keys() else max(value[key] for key in value.keys())
    return value


class UserDatasetBase(DatasetInterface):
    """Base of datasets in configs, with the attributes and methods that code for RETURNN uses.

    A class derives from one of the subclasses, or implements ``init_seq_order``, ``num_seqs`` or
    ``is_less_than_num_seqs``, ``get_data``, ``get_data_keys`` and ``get_tag``.

    :param options: those which all datasets have
    """

    def __init__(self, **options: Any):
        self._options = dict(options)
        where = "dataset %r (%s)" % (options.get("name") or type(self).__name__, type(self).__name__)
        opts = from_options(BaseOptions, options, where=where, none_is_absent=True)
        for name, value in vars(opts).items():
            setattr(self, name, value)
        self.name: str = opts.name or type(self).__name__
        self.num_inputs: Optional[int] = None
        self.num_outputs: Any = None
        self.labels: Any = {}
        self.epoch: Optional[int] = None
        self.makes_shards = False  # set once the order is made by `get_seq_order_for_epoch`
        self._num_seqs: Optional[int] = None

    def __repr__(self) -> str:
        return "<%s %r epoch=%s>" % (type(self).__name__, self.name, self.epoch)

    @classmethod
    def __dataset_class__(cls, options: dict[str, Any]) -> tuple[type[Dataset], dict[str, Any]]:
        """Return the class and options by which the engine reads datasets of this class."""
        return dataset_class("UserDataset"), {"user": cls, "user_options": options, **_common(options)}

    def __dataset__(self) -> tuple[type[Dataset], dict[str, Any]]:
        """Return the class and options by which the engine reads this dataset."""
        return dataset_class("UserDataset"), {"user": self, **_common(self._options)}

    # ---- order

    def initialize(self) -> None:
        """Prepare the dataset; called once, after it is made."""
        self.init_seq_order(epoch=None)

    def init_seq_order(
        self,
        epoch: Optional[int] = None,
        seq_list: Optional[Sequence[str]] = None,
        seq_order: Optional[Sequence[int]] = None,
    ) -> bool:
        """Begin an epoch; None: just initialise."""
        del seq_list, seq_order
        self.epoch = epoch
        return True

    def get_seq_order_for_epoch(
        self, epoch: Optional[int], num_seqs: int, get_seq_len: Optional[Callable[[int], Any]] = None
    ) -> list[int]:
        """Return the order by the options: indices of the sequences which the epoch has.

        :param get_seq_len: index -> length, for orders by length
        """
        self.makes_shards = True
        if not num_seqs:
            return []
        order = OrderOfUser(int(num_seqs), get_seq_len, **self._options).seq_order(epoch or 1)
        assert order is not None
        return [int(index) for index in order]

    def _get_random_seed_for_epoch(self, epoch: Optional[int], num_epochs_fixed: int = 1) -> int:
        return OrderOfUser(1, None, **self._options).epoch_seed(epoch or 1, nth=num_epochs_fixed)

    @property
    def num_seqs(self) -> int:
        """Return the number of sequences of the epoch; NotImplementedError if it is unknown."""
        if self._num_seqs is None:
            raise NotImplementedError("%s: the number of sequences is unknown" % self)
        return self._num_seqs

    @property
    def estimated_num_seqs(self) -> Optional[int]:
        """Return the number of sequences, exact or estimated."""
        try:
            return self.num_seqs
        except NotImplementedError:
            return self._estimated_num_seqs

    @estimated_num_seqs.setter
    def estimated_num_seqs(self, value: Optional[int]) -> None:
        self._estimated_num_seqs = value

    def get_total_num_seqs(self) -> int:
        """Return the number of sequences of the corpus."""
        raise NotImplementedError("%s.get_total_num_seqs" % type(self).__name__)

    def get_all_tags(self) -> list[str]:
        """Return the tags of the corpus."""
        raise NotImplementedError("%s.get_all_tags" % type(self).__name__)

    # ---- reading

    def is_less_than_num_seqs(self, n: int) -> bool:
        """Return whether the epoch has a sequence at this position."""
        return n < self.num_seqs

    def have_seqs(self) -> bool:
        """Return whether the epoch has any sequence."""
        return self.is_less_than_num_seqs(0)

    def load_seqs(self, start: int, end: int) -> None:
        """Load the sequences start..end-1, and drop those before."""
        self._load_seqs(start, end)

    def _load_seqs(self, start: int, end: int) -> None:
        pass

    def get_tag(self, sorted_seq_idx: int) -> str:
        """Return the name of a loaded sequence."""
        return "seq-%i" % sorted_seq_idx

    def get_complete_frac(self, sorted_seq_idx: int, **_: Any) -> Optional[float]:
        """Return the fraction of the epoch that is done with a loaded sequence, None if unknown."""
        try:
            return min((sorted_seq_idx + 1) / self.num_seqs, 1.0)
        except (NotImplementedError, ZeroDivisionError):
            return None

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End an epoch."""


def _common(options: dict[str, Any]) -> dict[str, Any]:
    names = BaseOptions.__dataclass_fields__
    return {name: value for name, value in options.items() if name in names}
