"""The declaration of a data key in ``extern_data``, and whether the data matches it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import DataError
from returnn_tf.config.errors import ConfigError, DatasetError
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.tensor import Data
from returnn_tf.tensor.extern_data import parse_data_key

#: Place of a part of a batch, for messages: number of the part -> (text, frame at which the part begins).
Places = Callable[[int], tuple[str, int]]


@dataclasses.dataclass(frozen=True)
class Declared:
    """One entry of ``extern_data``, in the layout of a batch.

    :param dtype: numpy name, "string" for text
    :param sizes: size of each axis after the batch axis, None where it differs between sequences
    :param num_labels: number of classes if the entries are label indices, None for other data
    :param finite: whether NaN and Inf are errors
    """

    dtype: str
    sizes: tuple[Optional[int], ...]
    num_labels: Optional[int] = None
    finite: bool = False

    @classmethod
    def of(cls, data: Data, *, finite: bool = False) -> Declared:
        """Return the declaration in a template."""
        sizes = tuple(dim.size for dim in data.dims if not dim.is_batch)
        return cls(data.dtype, sizes, data.sparse_dim.size if data.sparse_dim else None, finite)

    @property
    def has_time(self) -> bool:
        """Return whether an axis differs between sequences."""
        return None in self.sizes

    def checked(self, key: str, entries: dict[str, NDArray[Any]], cuts: list[NDArray[Any]], places: Places) -> Any:
        """Return the feed entries of a key; a time axis of a single frame is removed if none is declared.

        :param entries: of a batch, see ``Batch.feed``
        :param cuts: the parts of which it was made
        :raises DataError: naming the first sequence whose type, axes, sizes or labels differ from the declaration
        """
        value = entries[key]
        if value.ndim == len(self.sizes) + 2 and not self.has_time:
            for number, cut in enumerate(cuts):
                if len(cut) != 1:
                    text = "there are %d frames, but extern_data declares no time axis" % len(cut)
                    raise _error(key, places, number, text, "Write one frame per sequence, or declare a time axis")
            return {key: self.checked(key, {key: value[:, 0]}, [cut[0] for cut in cuts], places)[key]}
        self._check_type(key, cuts, places)
        self._check_sizes(key, entries, cuts, places)
        self._check_range(key, value, cuts, places)
        if self.finite:
            _check_finite(key, value, cuts, places)
        return entries

    def _check_type(self, key: str, cuts: list[NDArray[Any]], places: Places) -> None:
        for number, cut in enumerate(cuts):
            reason = type_mismatch(cut.dtype, self)
            if reason:
                raise _error(key, places, number, *reason)
            if not number and all(other.dtype == cut.dtype for other in cuts):
                return

    def _check_sizes(
        self, key: str, entries: dict[str, NDArray[Any]], cuts: list[NDArray[Any]], places: Places
    ) -> None:
        shape = entries[key].shape[1:]
        varies = any("%s/size%d" % (key, axis) in entries for axis, size in enumerate(self.sizes) if size is not None)
        if len(shape) == len(self.sizes) and not varies and not _differ(shape, self.sizes):
            return
        for number, cut in enumerate(cuts):
            if cut.ndim != len(self.sizes) or _differ(cut.shape, self.sizes):
                text = "the shape is %s, but extern_data declares %s" % (list(cut.shape), _shape_text(self.sizes))
                raise _error(key, places, number, text, "Correct the data, or its declaration in extern_data")

    def _check_range(self, key: str, value: NDArray[Any], cuts: list[NDArray[Any]], places: Places) -> None:
        limits = self._limits(value.dtype)
        if limits is None or not value.size or (limits[0] <= int(value.min()) and int(value.max()) <= limits[1]):
            return
        low, high = limits
        for number, cut in enumerate(cuts):
            bad = np.argwhere(~((cut >= low) & (cut <= high)))
            if len(bad):
                position = tuple(int(n) for n in bad[0])
                frame = " frame %d," % (places(number)[1] + position[0]) if position else ""
                if self.num_labels is None:
                    text = "%s %s is outside of what %s holds (%d to %d)" % (
                        frame,
                        cut[position],
                        self.dtype,
                        low,
                        high,
                    )
                    fix = "Declare a larger dtype"
                else:
                    text = "%s label %s, but extern_data declares the labels 0 to %d (dim %d)"
                    text %= frame, cut[position], high, self.num_labels
                    fix = "Correct the data" + ("" if cut[position] < 0 else ", or declare a larger dim")
                    if cut[position] == self.num_labels:
                        fix = "If your labels begin at 1, subtract 1 when the data is made; else declare a larger dim"
                raise _error(key, places, number, text.lstrip(), fix)

    def _limits(self, dtype: np.dtype[Any]) -> Optional[tuple[int, int]]:
        """Return the lowest and the highest value that may occur, or None if any may."""
        if dtype.kind not in "iu":
            return None
        if self.num_labels is not None:
            return 0, self.num_labels - 1
        if self.dtype == "bool":
            return 0, 1
        if np.dtype(self.dtype).kind not in "iu" or np.can_cast(dtype, self.dtype):
            return None
        info = np.iinfo(self.dtype)
        return int(info.min), int(info.max)


def _check_finite(key: str, value: NDArray[Any], cuts: list[NDArray[Any]], places: Places) -> None:
    """Find the first NaN or Inf.

    :raises DataError: names sequence, frame and value
    """
    with np.errstate(all="ignore"):
        if value.dtype.kind not in "fc" or np.isfinite(value.sum()):
            return
    for number, cut in enumerate(cuts):
        bad = np.argwhere(~np.isfinite(cut))
        if len(bad):
            position = tuple(int(n) for n in bad[0])
            frame = "frame %d" % (places(number)[1] + position[0]) if position else "the value"
            entry = ", entry %s" % (list(position[1:]) if len(position) > 2 else position[1]) if position[1:] else ""
            text = "%s%s is %s (%d of %d numbers are not finite)" % (frame, entry, cut[position], len(bad), cut.size)
            raise _error(key, places, number, text, "Correct the data, or leave the sequence out")


def type_mismatch(dtype: np.dtype[Any], declared: Declared) -> Optional[tuple[str, str]]:
    """Return the reason against a lossless conversion of a type to the declared one, and the fix; or None.

    The range of integers is checked value by value elsewhere.
    """
    wanted = declared.dtype
    given = "text" if dtype.kind in "OSU" else dtype.name
    if (wanted == "string") != (given == "text"):
        return "it is %s, but extern_data declares %s" % (given, _kind(declared)), (
            "Turn text into label indices when the data is written"
            if given == "text"
            else "Declare dtype %r" % dtype.name
        )
    if wanted == "string" or dtype.kind in "iu" or (dtype.kind == "b" and declared.num_labels is None):
        return None
    if declared.num_labels is not None or _numpy_kind(wanted) in "iub":
        return "it is %s, but extern_data declares %s" % (given, _kind(declared)), (
            "Write integers, or declare it with dtype %r and without 'sparse'" % dtype.name
        )
    if dtype.kind == "c" and _numpy_kind(wanted) != "c":
        return "it is %s, but extern_data declares %s" % (given, wanted), "Declare dtype %r" % dtype.name
    return None


def _numpy_kind(dtype: str) -> str:
    return "f" if dtype == "bfloat16" else np.dtype(dtype).kind


def _kind(declared: Declared) -> str:
    return declared.dtype if declared.num_labels is None else "label indices (%s)" % declared.dtype


def _differ(shape: tuple[int, ...], sizes: tuple[Optional[int], ...]) -> bool:
    return any(size is not None and got != size for got, size in zip(shape, sizes))


def _shape_text(sizes: tuple[Optional[int], ...]) -> str:
    return "[%s]" % ", ".join("time" if size is None else str(size) for size in sizes)


def _error(key: str, places: Places, number: int, text: str, fix: str) -> DataError:
    return DataError("%s: data key %r: %s. %s." % (places(number)[0], key, text, fix), topic="extern-data")


def specs_of_templates(templates: Any, *, where: str) -> dict[str, DataSpec]:
    """Return the format by data key.

    :param templates: data key -> dim, shape (time = None), sparse, dtype, ...
    :param where: prefix of errors
    :raises ConfigError: for another form; names the key
    """
    if not isinstance(templates, Mapping) or not templates:
        raise DatasetError("%s is %r, but must be {data key: {'dim': ..., 'shape': ...}}" % (where, templates))
    specs = {}
    for key, options in templates.items():
        try:
            template = parse_data_key(key, options)
        except ConfigError as exc:
            raise DatasetError("%s: %s" % (where, exc)) from None
        declared = Declared.of(template)
        dim = declared.num_labels if template.sparse_dim else template.dim
        specs[key] = DataSpec(
            dim=dim or (0 if template.sparse_dim else 1),
            ndim=len(declared.sizes),
            dtype="object" if declared.dtype == "string" else declared.dtype,
            shape=declared.sizes[1:],
        )
    return specs
