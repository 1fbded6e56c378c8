"""The part of RETURNN's dataset interface that follows from a few basic methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.datasets.core.data_spec import num_frames


class DatasetInterface:
    """Derives format and lengths from ``get_data``, ``num_inputs`` and ``num_outputs``."""

    name: str
    num_inputs: Optional[int]
    num_outputs: Any
    labels: Any

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return an array of a loaded sequence, [time, ...]."""
        raise NotImplementedError("%s.get_data" % type(self).__name__)

    def get_targets(self, target: str, sorted_seq_idx: int) -> NDArray[Any]:
        """Return the array of a target."""
        return self.get_data(sorted_seq_idx, target)

    def get_data_keys(self) -> list[str]:
        """Return all keys."""
        return ["data", *self.get_target_list()]

    def get_target_list(self) -> list[str]:
        """Return all keys but "data"."""
        return [key for key in self._declared() if key != "data"]

    def get_seq_length(self, seq_idx: int) -> Any:
        """Return frames of a loaded sequence by key."""
        return {key: num_frames(self.get_data(seq_idx, key)) for key in self.get_data_keys()}

    def _declared(self) -> dict[str, tuple[int, int]]:
        """Return (dim, number of axes with time) by key, from ``num_outputs`` in any of its forms."""
        given = self.num_outputs
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            given = {"classes": given}
        return {key: _dim_and_ndim(key, value) for key, value in given.items()}

    def get_data_dim(self, key: str) -> int:
        """Return the feature dim or the number of labels of a key."""
        declared = self._declared()
        if key in declared:
            return declared[key][0]
        return int(self.num_inputs or 0) if key == "data" else 0

    def is_data_sparse(self, key: str) -> bool:
        """Return whether a key holds label indices."""
        declared = self._declared()
        return key in declared and declared[key][1] <= 1

    def get_data_dtype(self, key: str) -> str:
        """Return the type of a key."""
        return "int32" if self.is_data_sparse(key) else "float32"

    def get_data_shape(self, key: str) -> list[Optional[int]]:
        """Return the sizes of the axes after time."""
        declared = self._declared().get(key, (self.get_data_dim(key), 2))
        return [] if declared[1] <= 1 else [*[None] * (declared[1] - 2), declared[0]]


def _dim_and_ndim(key: str, value: Any) -> tuple[int, int]:
    if isinstance(value, Mapping):
        shape = value.get("shape", (None, value.get("dim")))
        sparse = value.get("sparse", False)
        return int(value.get("dim") or 0), 1 if sparse else len(shape)
    if isinstance(value, (tuple, list)):
        return int(value[0]), int(value[1])
    return int(value), 2 if key == "data" else 1
