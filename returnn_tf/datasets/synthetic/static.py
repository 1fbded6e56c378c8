"""StaticDataset: sequences given as arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DatasetDataError, DatasetError, did_you_mean
from returnn_tf.config.options import option
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec, num_frames, spec_of_array
from returnn_tf.datasets.core.generating import dim_and_ndim
from returnn_tf.datasets.core.per_key import reference_key
from returnn_tf.datasets.core.registry import register_dataset


@register_dataset()
class StaticDataset(Dataset):
    """In-memory sequences: a list with a dict of arrays for each one.

    >>> import numpy as np
    >>> from returnn_tf.datasets import Dataset
    >>> seqs = [{"data": np.zeros((5, 2), "float32"), "classes": np.array([0, 1], "int32")}]
    >>> dataset = Dataset.from_config({"class": "StaticDataset", "data": seqs, "output_dim": {"classes": (3, 1)}})
    >>> dataset.num_outputs
    {'data': (2, 2), 'classes': (3, 1)}

    Formats come from the first sequence. The length for ``sorted`` etc. is that of "data", or of the first key.
    """

    estimates_lengths = False

    @dataclass
    class Options(Dataset.Options):
        data: list[Any] = option(help="list of dicts, data key -> array [time, ...]")
        target_list: Optional[list[str]] = option(None, help="keys which are targets; default all but 'data'")
        input_dim: Optional[int] = option(None, help="dim of 'data'; default from the first sequence")
        output_dim: Optional[dict[str, Any]] = option(
            None, help="key -> dim or [dim, ndim]; needed for the number of classes of sparse data"
        )

    def setup(self) -> None:
        """Take over the arrays, and derive the formats."""
        self._data: list[dict[str, NDArray[Any]]] = [self._arrays(i, seq) for i, seq in enumerate(self.opts.data)]
        first = self._data[0] if self._data else {}
        specs = {key: self._spec(key, value) for key, value in sorted(first.items(), key=_data_first)}
        self.data_specs = self.windowed(specs)
        for index, seq in enumerate(self._data):
            if set(seq) != set(first):
                raise DatasetDataError(
                    "%s: sequence %d has the keys %s, but the first one %s"
                    % (self._owner(), index, sorted(seq), sorted(first))
                )
        for key in list(self.opts.target_list or []) + list(self.opts.output_dim or {}):
            if first and key not in first:
                raise DatasetError("%s: there is no data key %r. %s" % (self._owner(), key, did_you_mean(key, first)))

    def _arrays(self, index: int, seq: Any) -> dict[str, NDArray[Any]]:
        if not isinstance(seq, dict) or not seq:
            raise DatasetError(
                "%s: sequence %d must be a dict of arrays, not %s" % (self._owner(), index, type(seq).__name__)
            )
        arrays = {}
        for key, value in seq.items():
            try:
                arrays[key] = np.asarray(value)
            except ValueError as exc:
                raise DatasetError(
                    "%s: sequence %d, data key %r is no array: %s" % (self._owner(), index, key, exc)
                ) from None
        return arrays

    def _spec(self, key: str, value: NDArray[Any]) -> DataSpec:
        given = (self.opts.output_dim or {}).get(key)
        if given is None and key == "data":
            given = self.opts.input_dim
        dim = None if given is None else dim_and_ndim(given, option="output_dim", ndim=value.ndim)[0]
        spec = spec_of_array(value, dim)
        shapes = {seq[key].shape[1:] for seq in self._data if key in seq and seq[key].ndim == value.ndim}
        fixed = [len({shape[axis] for shape in shapes}) == 1 for axis in range(len(spec.shape))]
        return dataclasses.replace(spec, shape=tuple(n if same else None for n, same in zip(spec.shape, fixed)))

    @property
    def num_seqs(self) -> int:
        """Return the length of the list."""
        return len(self._data)

    @property
    def target_list(self) -> list[str]:
        """Return the option ``target_list``, default all keys but "data"."""
        return list(self.opts.target_list or super().target_list)

    def lengths(self, index: int) -> dict[str, int]:
        """Return frames by key."""
        return {key: num_frames(self._data[index][key]) for key in self.data_specs}

    def seq_lengths(self) -> NDArray[Any]:
        """Return lengths [num_seqs] of "data", or of the first key."""
        key = reference_key(self.data_specs)
        return np.array([num_frames(seq[key]) for seq in self._data], np.int64)

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the arrays as given."""
        return {key: self._data[index][key] for key in keys}


def _data_first(item: Any) -> Any:
    return item[0] != "data", 0
