"""Matrices that are stored as smaller numbers, and what computes with them and with tensors alike.

A channel is a column of a product, or a label whose row is looked up. The numbers of a channel are in groups of 4
bytes, those of 16 channels, a panel, side by side, as native ops multiply them (``native_ops/common/panel_product.h``).
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Optional, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from returnn_tf.logging.log import log
from returnn_tf.native.at_once import is_awaited
from returnn_tf.native.portable import in_portable_ops
from returnn_tf.util.lazy_tf import tf

#: Channels that are stored side by side.
PANEL = 16
#: Numbers of a matrix that are rounded at once: copies of a whole one would be most of the memory while a model loads.
_AT_ONCE = 2**20


@runtime_checkable
class RowProduct(Protocol):
    """A form of a matrix that multiplies rows by it in its own way."""

    def product(self, x: Any) -> Any:
        """Compute ``x W``.

        :param x: [rows, depth]
        """


@dataclasses.dataclass(frozen=True)
class RoundedMatrix(abc.ABC):
    """A matrix [depth, width], as tensors of a graph.

    :param numbers: [panels, groups, 16, numbers of a group]
    :param depth: of products
    :param width: how many channels there are
    :param scales: [width], or None for a type that needs none
    """

    numbers: Any
    depth: int
    width: int
    scales: Any = None

    #: Name of the type.
    dtype: ClassVar[str]
    #: Steps of the depth in a group.
    group: ClassVar[int]
    #: The name in files, below that of the parameter, of each array -> its type: the numbers, then what else there is.
    parts: ClassVar[Mapping[str, str]]
    #: The largest depth of a product, or None.
    longest: ClassVar[Optional[int]] = None

    @classmethod
    def stored_shape(cls, width: int, depth: int) -> tuple[int, int, int, int]:
        """Return the shape of the numbers: panels, groups, channels of a panel, steps of a group."""
        return -(-width // PANEL), -(-depth // cls.group), PANEL, cls.group

    @classmethod
    @abc.abstractmethod
    def round(cls, w: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the arrays of `parts` for a matrix [width, depth] of finite numbers."""

    @classmethod
    @abc.abstractmethod
    def restored(cls, parts: Sequence[NDArray[Any]], width: int, depth: int) -> NDArray[np.float32]:
        """Return the matrix [width, depth] that the arrays stand for."""

    @abc.abstractmethod
    def product(self, x: Any) -> Any:
        """Return ``x matrix``, [..., width].

        :param x: [..., depth]
        """

    @abc.abstractmethod
    def _floats(self, numbers: Any, scales: Any) -> Any:
        """Return the values of numbers in float32."""

    @classmethod
    def blocks(cls, width: int, depth: int) -> Iterator[tuple[slice, slice]]:
        """Yield panels and their channels, not too many at a time."""
        panels, groups, _, _ = cls.stored_shape(width, depth)
        at_once = max(1, _AT_ONCE // (PANEL * groups * cls.group))
        for first in range(0, panels, at_once):
            yield slice(first, first + at_once), slice(first * PANEL, (first + at_once) * PANEL)

    @classmethod
    def to_panels(cls, rows: NDArray[Any], padding: Any) -> NDArray[Any]:
        """Return rounded numbers [channels, depth] in the order in which they are stored."""
        panels, groups, _, _ = shape = cls.stored_shape(*rows.shape)
        padded = np.full((panels * PANEL, groups * cls.group), padding, rows.dtype)
        padded[: len(rows), : rows.shape[1]] = rows
        return padded.reshape([panels, PANEL, groups, shape[-1]]).transpose(0, 2, 1, 3)

    @classmethod
    def from_panels(cls, numbers: NDArray[Any], width: int, depth: int) -> NDArray[Any]:
        """Return numbers as [width, depth]: the inverse of `to_panels`."""
        panels, groups, _, _ = numbers.shape
        return numbers.transpose(0, 2, 1, 3).reshape([panels * PANEL, groups * cls.group])[:width, :depth]

    def __getitem__(self, depth: slice) -> Any:
        """Return steps of the depth as a matrix, or in float32 if they are not whole groups."""
        start, stop, _ = depth.indices(self.depth)
        if start % self.group or (stop % self.group and stop != self.depth):
            return self.values()[start:stop]
        numbers = self.numbers[:, start // self.group : -(-stop // self.group)]
        return dataclasses.replace(self, numbers=numbers, depth=stop - start)

    def rows(self, channels: Any) -> Any:
        """Return the numbers of channels, [..., depth].

        :param channels: int [...]
        """
        groups = self.numbers.shape[1]
        panel, within = channels // PANEL, channels % PANEL
        places = (panel[..., None] * groups + tf.range(groups, dtype=channels.dtype)) * PANEL + within[..., None]
        found = tf.gather(tf.reshape(self.numbers, [-1, self.group]), places)
        found = tf.reshape(found, tf.concat([tf.shape(channels), [groups * self.group]], axis=0))[..., : self.depth]
        found.set_shape(channels.shape.concatenate([self.depth]))
        return self._floats(found, None if self.scales is None else tf.gather(self.scales, channels)[..., None])

    def laid_out(self) -> Any:
        """Return the numbers as [depth, width]."""
        panels, groups = self.numbers.shape[:2]
        w = tf.reshape(tf.transpose(self.numbers, [1, 3, 0, 2]), [groups * self.group, panels * PANEL])
        return w[: self.depth, : self.width]

    def values(self) -> Any:
        """Return the matrix in float32, [depth, width]."""
        return self._floats(self.laid_out(), self.scales)


def as_floats(w: Any) -> Any:
    """Return a matrix in float32.

    :param w: `RoundedMatrix`, or a tensor
    """
    return w.values() if isinstance(w, RoundedMatrix) else w


def times(x: Any, w: Any) -> Any:
    """Return ``x w``.

    :param x: [batch, depth]
    :param w: [depth, columns], `RowProduct` or a tensor
    """
    return w.product(x) if isinstance(w, RowProduct) else tf.matmul(x, w)


def split_columns(w: Any, sizes: Sequence[int]) -> list[Any]:
    """Split a matrix by columns, in float32 if it is rounded and the parts are not whole panels.

    :param w: `RoundedMatrix`, or a tensor
    """
    if not isinstance(w, RoundedMatrix) or any(size % PANEL for size in sizes):
        found: list[Any] = tf.split(as_floats(w), sizes, axis=-1)
        return found
    numbers = tf.split(w.numbers, [size // PANEL for size in sizes])
    scales = [None] * len(sizes) if w.scales is None else tf.split(w.scales, sizes)
    return [dataclasses.replace(w, numbers=n, width=size, scales=s) for n, size, s in zip(numbers, sizes, scales)]


def split_rows(w: Any, sizes: Sequence[int]) -> list[Any]:
    """Split a matrix by steps of the depth, in float32 where parts of a rounded one are not whole groups.

    The gradient of a tensor is one concatenation, in place of a sum of as many padded arrays as there are parts.

    :param w: `RoundedMatrix`, or a tensor
    """
    if not isinstance(w, RoundedMatrix):
        found: list[Any] = tf.split(w, sizes, axis=0)
        return found
    ends = list(itertools.accumulate(sizes))
    return [w[end - size : end] for end, size in zip(ends, sizes)]


def side_by_side(parts: Sequence[Any]) -> Any:
    """Return matrices of the same depth and type as one, in float32 if not all are rounded and whole panels.

    :param parts: `RoundedMatrix`, or tensors
    """
    first = parts[0]
    if any(not isinstance(w, RoundedMatrix) or w.width % PANEL for w in parts):
        return tf.concat([as_floats(w) for w in parts], axis=-1)
    scales = None if first.scales is None else tf.concat([w.scales for w in parts], axis=0)
    numbers = tf.concat([w.numbers for w in parts], axis=0)
    return dataclasses.replace(first, numbers=numbers, width=sum(w.width for w in parts), scales=scales)


def one_below_the_other(parts: Sequence[Any]) -> Any:
    """Return parts of the depth of one matrix as a matrix, in float32 if not all are rounded and whole groups.

    :param parts: `RoundedMatrix`, all with the same scales, or tensors
    """
    if any(not isinstance(w, RoundedMatrix) or w.depth % w.group for w in parts):
        return tf.concat([as_floats(w) for w in parts], axis=0)
    numbers = tf.concat([w.numbers for w in parts], axis=1)
    return dataclasses.replace(parts[0], numbers=numbers, depth=sum(w.depth for w in parts))


def note_plain_product(dtype: str) -> None:
    """Log once that products without the native op take long; not in graphs without the library on purpose, or for now.

    :param dtype: also the name of the op
    """
    if in_portable_ops() or is_awaited(dtype):
        return
    if tf.config.get_visible_devices("GPU"):
        reason, fix = "there is none for GPUs", "search on the CPU (++device cpu), or"
    else:
        reason, fix = "it can't be used here", "see returnn-tf doctor, or"
    log.warn(
        "quantize: products with %s need the native op %s, and %s: matrices are converted for each product, which "
        "takes about three times as long as float32. To search faster, %s remove quantize."
        % (dtype, dtype, reason, fix),
        once=True,
    )
