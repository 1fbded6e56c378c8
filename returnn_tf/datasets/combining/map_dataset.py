"""MapDatasetWrapper: an object of the config that gives sequences by index, as a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ConfigError, DataError, DatasetDataError, DatasetError, shown
from returnn_tf.config.options import log_inert, option
from returnn_tf.config.user_code import error_in_config, result_of_config
from returnn_tf.datasets.core import seq_order as orders
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.declared import specs_of_templates
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.share import Chosen


class MapDatasetBase:
    """Base of such objects in configs: a subclass defines ``__len__`` and ``__getitem__``.

    :param data_types: data key -> options as in ``extern_data``: dim, shape, sparse, dtype
    """

    def __init__(self, data_types: Optional[dict[str, Any]] = None) -> None:
        self.data_types = data_types

    def __len__(self) -> int:
        raise NotImplementedError("%s.__len__" % type(self).__name__)

    def __getitem__(self, seq_idx: int) -> dict[str, NDArray[Any]]:
        """Return the data of a sequence by key: [time, ...]."""
        raise NotImplementedError("%s.__getitem__" % type(self).__name__)

    def get_seq_len(self, seq_idx: int) -> int:
        """Return the length by which sequences are ordered; optional."""
        raise NotImplementedError("%s.get_seq_len" % type(self).__name__)

    def get_seq_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence."""
        return "seq-%i" % seq_idx

    def get_seq_order(self, epoch: Optional[int] = None) -> Sequence[int]:
        """Return the indices of the sequences of an epoch; optional."""
        raise NotImplementedError("%s.get_seq_order" % type(self).__name__)


class FromListDataset(MapDatasetBase):
    """A list of sequences.

    :param data_list: the data by key of each sequence
    :param sort_data_key: the key whose length orders the sequences; default: no order by length
    :param data_types: see `MapDatasetBase`
    """

    def __init__(
        self, data_list: Sequence[Mapping[str, NDArray[Any]]], sort_data_key: Optional[str] = None, **others: Any
    ) -> None:
        super().__init__(**others)
        self._data_list = data_list
        self._sort_data_key = sort_data_key

    def __len__(self) -> int:
        return len(self._data_list)

    def __getitem__(self, seq_idx: int) -> dict[str, NDArray[Any]]:
        """Return the data of a sequence by key."""
        return dict(self._data_list[seq_idx])

    def get_seq_len(self, seq_idx: int) -> int:
        """Return the length of the data of ``sort_data_key``."""
        if self._sort_data_key is None:
            raise NotImplementedError("FromListDataset without sort_data_key")
        return len(self._data_list[seq_idx][self._sort_data_key])


@register_dataset()
class MapDatasetWrapper(Dataset):
    """Sequences of an object with ``__len__``, ``__getitem__`` and ``data_types``, see `MapDatasetBase`.

    Its ``get_seq_order`` goes before the option ``seq_ordering``, and is called for each epoch. Without its
    ``get_seq_len`` there are no orders by length.

    >>> import numpy as np
    >>> from returnn_tf.datasets import Dataset
    >>> seqs = FromListDataset([{"data": np.zeros((3, 2), "float32")}], data_types={"data": {"dim": 2}})
    >>> Dataset.from_config({"class": "MapDatasetWrapper", "map_dataset": seqs}).num_seqs
    1
    """

    @dataclass
    class Options(Dataset.Options):
        map_dataset: Any = option(help="the object, or a function that returns it")

    def setup(self) -> None:
        """Take over the object, and its format."""
        source = self.opts.map_dataset
        if not hasattr(source, "__getitem__") or isinstance(source, type):
            if not callable(source):
                raise DatasetError(
                    "%s: option 'map_dataset' is %s, but must have the methods __len__ and __getitem__, or be "
                    "a function that returns such an object" % (self._owner(), shown(source))
                )
            source = result_of_config("%s: option 'map_dataset'" % self._owner(), source)
        if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
            raise DatasetError("%s: map_dataset %s lacks __len__ or __getitem__" % (self._owner(), shown(source)))
        self._source = source
        self._num_seqs = int(self._call("__len__"))
        where = "%s: map_dataset.data_types" % self._owner()
        self._declared = specs_of_templates(getattr(source, "data_types", None), where=where)
        self.data_specs = self.windowed(self._declared)
        self._lengths: Optional[NDArray[Any]] = None

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the object; DataError with place and line for an error in it."""
        try:
            return getattr(self._source, method)(*args, **kwargs)
        except (ConfigError, DataError, NotImplementedError):
            raise
        except Exception as exc:
            text = error_in_config(exc) or "%s: %s" % (type(exc).__name__, exc)
            raise DatasetDataError("%s of map_dataset: %s" % (method, text)) from exc

    def _optional(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call an optional method; None without it."""
        if not hasattr(self._source, method):
            return None
        try:
            return self._call(method, *args, **kwargs)
        except NotImplementedError:
            return None
        except DataError as exc:
            raise DatasetDataError("%s: %s" % (self._owner(), exc)) from exc.__cause__

    @property
    def num_seqs(self) -> int:
        """Return the length of the object."""
        return self._num_seqs

    def tag(self, index: int) -> str:
        """Return the tag from the object, default "seq-<index>"."""
        tag = self._optional("get_seq_tag", index)
        return super().tag(index) if tag is None else str(tag)

    def seq_lengths(self) -> Optional[NDArray[Any]]:
        """Return lengths [num_seqs] as the object gives them, or None."""
        if self._lengths is None and self._num_seqs:
            if self._optional("get_seq_len", 0) is None:
                return None
            self._lengths = np.array([self._optional("get_seq_len", index) for index in range(self._num_seqs)])
        return self._lengths

    def ordering(self, epoch: int) -> orders.Ordering:
        """Return the order of this epoch; ConfigError if it needs lengths that are not known."""
        ordering = super().ordering(epoch)
        if ordering.kind.startswith("sorted"):
            self.needed_lengths()
        return ordering

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return the object's own order, else that of the options."""
        order = self._optional("get_seq_order", epoch=epoch)
        if order is None:
            return super().seq_order(epoch)
        if self.opts.partition_epoch > 1:
            log_inert(self._owner(), "partition_epoch", "get_seq_order of map_dataset determines the order")
        order = self.explicit_order(epoch, Chosen(seq_order=list(order)))
        assert order is not None
        if self.opts._num_shards > 1:
            order = orders.partition(order, num_parts=self.opts._num_shards, part=self.opts._shard_index)
        return self.epoch_order.filtered(order, epoch, self.corpus_facts)

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the data of one sequence as the object gives it."""
        given = self._call("__getitem__", index)
        if not isinstance(given, Mapping):
            raise DatasetDataError("map_dataset[%d] is %s, but must be a dict of arrays" % (index, shown(given)))
        missing = [key for key in keys if key not in given]
        if missing:
            raise DatasetDataError(
                "map_dataset[%d] has no key %r, only %s" % (index, missing[0], ", ".join(map(str, given)))
            )
        data = {key: np.asarray(given[key]) for key in keys}
        for key, value in data.items():
            self._check(key, value)
        return data

    def _check(self, key: str, value: NDArray[Any]) -> None:
        """Compare with ``data_types``; its dtype is only that of the network."""
        spec: DataSpec = self._declared[key]
        fits = value.ndim == spec.ndim and all(n in (None, got) for n, got in zip(spec.shape, value.shape[1:]))
        if not fits:
            raise DatasetDataError(
                "key %r has the shape %s, but data_types declares %d axes%s"
                % (key, list(value.shape), spec.ndim, " with dim %d" % spec.dim if spec.ndim > 1 else "")
            )
