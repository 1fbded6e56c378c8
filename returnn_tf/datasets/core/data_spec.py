"""The declared format of a data key, one sequence as read, and the option ``window``."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import DatasetDataError, DatasetError, shown

_ROUNDING = 1e-5  # of a fraction that float32 numbers made


@dataclasses.dataclass(frozen=True)
class DataSpec:
    """Format of one data key.

    :param dim: feature dimension, number of classes if sparse (0 = unknown), 1 for one number per frame
    :param ndim: number of axes of one sequence, time included: 1 = sparse or one number per frame, 2 = dense
    :param dtype: numpy name, "object" or "string" for strings
    :param shape: sizes of the axes after time; None = differs between sequences
    :param labels: names of the classes or features, if known
    :param is_sparse: whether the key holds class indices; None: if it has an integer type and no feature axis
    """

    dim: int
    ndim: int
    dtype: str
    shape: tuple[Optional[int], ...] = ()
    labels: Optional[tuple[str, ...]] = None
    is_sparse: Optional[bool] = None

    @property
    def sparse(self) -> bool:
        """Return whether the key holds class indices."""
        if self.is_sparse is not None:
            return self.is_sparse
        return self.ndim <= 1 and self.numpy_dtype.kind in "iu"

    @property
    def is_text(self) -> bool:
        """Return whether the values are strings."""
        return self.dtype in ("object", "string")

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Return the type of the arrays."""
        return np.dtype("object" if self.is_text else self.dtype)

    def as_extern_data(self) -> dict[str, Any]:
        """Return an entry of ``extern_data``.

        It has dim, sparse, shape (time = None), and the dtype in which networks compute.
        """
        dtype = "int32" if self.sparse else {"object": "string", "float64": "float32"}.get(self.dtype, self.dtype)
        time: tuple[Optional[int], ...] = (None,) if self.ndim > 0 else ()
        return {
            "dim": self.dim if self.sparse or self.ndim > 1 else None,
            "sparse": self.sparse,
            "dtype": dtype,
            "shape": time + tuple(self.shape),
        }


@dataclasses.dataclass(frozen=True)
class Example:
    """One sequence of a corpus.

    :param index: position in the corpus
    :param tag: name of the sequence
    :param data: key -> array, time first: [time], [time, dim], [time, ...], or [] for one value per sequence
    :param position: position in the order of the epoch
    :param complete: fraction of the epoch that is done with it, if a stream knows
    :param resume: what a stream needs to go on behind it, as JSON; see ``StreamDataset.stream``
    """

    index: int
    tag: str
    data: dict[str, NDArray[Any]]
    position: int = 0
    complete: Optional[float] = None
    resume: Any = None

    @property
    def lengths(self) -> dict[str, int]:
        """Return frames by key; a value without time axis counts as 1."""
        return {key: num_frames(value) for key, value in self.data.items()}


def checked_fraction(value: Any, where: str) -> Optional[float]:
    """Return the fraction of an epoch that a user's code gives as ``complete_frac``, None if it gives none.

    :raises DataError: it is no number from 0 to 1
    """
    if value is None:
        return None
    array = np.asarray(value)
    number = float(array.reshape(())) if array.size == 1 and array.dtype.kind in "fiu" else math.nan
    if not -_ROUNDING <= number <= 1 + _ROUNDING:
        raise DatasetDataError(
            "%s: complete_frac must be a number from 0 to 1, or None, not %s" % (where, shown(value))
        )
    return min(max(number, 0.0), 1.0)


def can_hold(dtype: Any, spec: DataSpec) -> bool:
    """Return whether arrays of a type can have the values of a data key: all labels, numbers of the same kind."""
    try:
        wanted = np.dtype("object" if dtype == "string" else dtype)
    except TypeError:  # there is no such type
        return False
    if spec.sparse:
        return wanted.kind in "iu" and (not spec.dim or int(np.iinfo(wanted).max) >= spec.dim - 1)
    return bool(np.can_cast(spec.numpy_dtype, wanted, "same_kind"))


def num_frames(value: NDArray[Any]) -> int:
    """Return the size of the time axis (axis 0), or 1 for a scalar."""
    return int(value.shape[0]) if value.ndim else 1


def spec_of_array(value: NDArray[Any], dim: Optional[int] = None) -> DataSpec:
    """Return the spec of a key, derived from one of its arrays.

    :param value: [time, ...] or []
    :param dim: number of classes for sparse data; unknown (0) if not given
    """
    sparse = value.ndim <= 1 and value.dtype.kind in "iu"
    if dim is None:
        dim = 0 if sparse else int(value.shape[1]) if value.ndim > 1 else 1
    dtype = "object" if value.dtype.kind in "OSU" else value.dtype.name
    return DataSpec(dim=dim, ndim=value.ndim, dtype=dtype, shape=tuple(int(n) for n in value.shape[1:]))


def stack_frames(value: NDArray[Any], window: int) -> NDArray[Any]:
    """Stack the frames t - w//2 .. t + w//2 of each frame t, zeros outside of the sequence.

    :param value: [time, dim]
    :param window: odd
    :return: [time, window * dim]
    """
    if value.ndim != 2:
        raise DatasetDataError("option 'window' is for data of shape [time, dim], but this has %d axes" % value.ndim)
    side = window // 2
    padded = np.pad(value, ((side, side), (0, 0)))
    return np.concatenate([padded[i : i + len(value)] for i in range(window)], axis=1)


def window_spec(spec: DataSpec, window: int, owner: str) -> DataSpec:
    """Return the format of key "data" after ``stack_frames``."""
    if spec.ndim != 2:
        raise DatasetError(
            "%s: option 'window' needs dense data [time, dim], but 'data' has %d axes" % (owner, spec.ndim)
        )
    return dataclasses.replace(spec, dim=spec.dim * window, shape=(spec.dim * window,))
