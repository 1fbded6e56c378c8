"""Matrices of int8 with a scale for each channel, and products in which activations are rounded to int8, too.

A matrix w [depth, channels] is stored as integers q from -127 to 127 and scales s: ``w[k, c] = q[k, c] s[c]``, where
the largest number of a channel is 127. A row of activations is rounded in the same way while a graph runs. Sums of
integers are exact, hence a product is the same bit by bit in all its forms.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.logging.log import log
from returnn_tf.native.dispatch import form
from returnn_tf.native.int8 import GROUP, MOST, OFFSET, PANEL, int8_ops, native_int8_product
from returnn_tf.native.portable import in_portable_ops
from returnn_tf.util.lazy_tf import tf

#: The largest depth of a product whose sum fits in int32.
LONGEST = 2**31 // MOST**2
#: Rows and channels whose largest number is smaller count as 0.
_LEAST = 2.0**-100
#: Numbers of a matrix that are rounded at once: copies of a whole one would be most of the memory while a model loads.
_AT_ONCE = 2**20
#: Integers of a product that float32 adds without rounding.
_EXACT = 2**24 // MOST**2


def stored_shape(channels: int, depth: int) -> tuple[int, int, int, int]:
    """Return the shape of the numbers of a matrix: panels, groups, channels of a panel, steps of a group."""
    return -(-channels // PANEL), -(-depth // GROUP), PANEL, GROUP


def to_int8(w: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Round a matrix to int8, half to even.

    :param w: [channels, depth], finite
    :return: numbers, see `stored_shape`, with an offset of 128; scales [channels]
    """
    channels, depth = w.shape
    panels, groups, _, _ = stored_shape(channels, depth)
    numbers, scales = np.empty((panels, groups, PANEL, GROUP), "uint8"), np.empty(channels, "float32")
    at_once = max(1, _AT_ONCE // (PANEL * groups * GROUP))
    for first in range(0, panels, at_once):
        rows = slice(first * PANEL, (first + at_once) * PANEL)
        part = w[rows].astype("float32", copy=False)
        largest = np.abs(part).max(axis=1)
        largest = np.where(largest < _LEAST, np.float32(0), largest)
        with np.errstate(divide="ignore"):
            factors = np.where(largest > 0, np.float32(MOST) / largest, np.float32(0))
        stored = np.full((-(-len(part) // PANEL) * PANEL, groups * GROUP), OFFSET, "uint8")
        stored[: len(part), :depth] = np.rint(part * factors[:, None]) + OFFSET
        numbers[first : first + at_once] = stored.reshape([-1, PANEL, groups, GROUP]).transpose(0, 2, 1, 3)
        scales[rows] = largest / np.float32(MOST)
    return numbers, scales


def from_int8(numbers: NDArray[np.uint8], scales: NDArray[np.float32], depth: int) -> NDArray[np.float32]:
    """Return the matrix [channels, depth] that numbers and scales stand for."""
    panels, groups, _, _ = numbers.shape
    rows = numbers.transpose(0, 2, 1, 3).reshape([panels * PANEL, groups * GROUP])
    rounded: NDArray[np.float32] = rows[: len(scales), :depth].astype("float32") - np.float32(OFFSET)
    return rounded * scales[:, None]


@dataclasses.dataclass(frozen=True)
class Int8Matrix:
    """A matrix [depth, channels].

    :param numbers: uint8, see `to_int8`
    :param scales: [channels]
    """

    numbers: Any
    scales: Any
    depth: int

    def __getitem__(self, depth: slice) -> Any:
        """Return steps of the depth as a matrix, or in float32 if they are not whole groups."""
        start, stop, _ = depth.indices(self.depth)
        if start % GROUP or (stop % GROUP and stop != self.depth):
            return self.values()[start:stop]
        return Int8Matrix(self.numbers[:, start // GROUP : -(-stop // GROUP)], self.scales, stop - start)

    def product(self, x: Any) -> Any:
        """Return ``x matrix``, [..., channels].

        :param x: [..., depth]
        """
        return int8_product(x, self)

    def rows(self, channels: Any) -> Any:
        """Return the numbers of channels, [..., depth].

        :param channels: int [...]
        """
        groups = self.numbers.shape[1]
        panel, within = channels // PANEL, channels % PANEL
        places = (panel[..., None] * groups + tf.range(groups, dtype=channels.dtype)) * PANEL + within[..., None]
        found = tf.gather(tf.reshape(self.numbers, [-1, GROUP]), places)
        found = tf.reshape(found, tf.concat([tf.shape(channels), [groups * GROUP]], axis=0))[..., : self.depth]
        found.set_shape(channels.shape.concatenate([self.depth]))
        return (tf.cast(found, tf.float32) - OFFSET) * tf.gather(self.scales, channels)[..., None]

    def integers(self) -> Any:
        """Return the integers as floats, [depth, channels]."""
        panels, groups = self.numbers.shape[:2]
        w = tf.reshape(tf.transpose(self.numbers, [1, 3, 0, 2]), [groups * GROUP, panels * PANEL])
        return tf.cast(w[: self.depth, : self.scales.shape[0]], tf.float32) - OFFSET

    def values(self) -> Any:
        """Return the matrix in float32, [depth, channels]."""
        return self.integers() * self.scales


def as_floats(w: Any) -> Any:
    """Return a matrix in float32.

    :param w: `Int8Matrix`, or a tensor
    """
    return w.values() if isinstance(w, Int8Matrix) else w


def times(x: Any, w: Any) -> Any:
    """Return ``x w``.

    :param x: [batch, depth]
    :param w: [depth, columns], `Int8Matrix` or a tensor
    """
    return w.product(x) if isinstance(w, Int8Matrix) else tf.matmul(x, w)


def split_columns(w: Any, sizes: Sequence[int]) -> list[Any]:
    """Split a matrix by columns, in float32 if it is of int8 and the parts are not whole panels.

    :param w: `Int8Matrix`, or a tensor
    """
    if not isinstance(w, Int8Matrix) or any(size % PANEL for size in sizes):
        found: list[Any] = tf.split(as_floats(w), sizes, axis=-1)
        return found
    numbers = tf.split(w.numbers, [size // PANEL for size in sizes])
    return [Int8Matrix(part, scales, w.depth) for part, scales in zip(numbers, tf.split(w.scales, sizes))]


def side_by_side(parts: Sequence[Any]) -> Any:
    """Return matrices of the same depth as one, in float32 if not all are of int8 in whole panels.

    :param parts: `Int8Matrix`, or tensors
    """
    if any(not isinstance(w, Int8Matrix) or w.scales.shape[0] % PANEL for w in parts):
        return tf.concat([as_floats(w) for w in parts], axis=-1)
    numbers, scales = (tf.concat([getattr(w, name) for w in parts], axis=0) for name in ("numbers", "scales"))
    return Int8Matrix(numbers, scales, parts[0].depth)


def one_below_the_other(parts: Sequence[Any]) -> Any:
    """Return parts of the depth of one matrix as a matrix, in float32 if not all are of int8 in whole groups.

    :param parts: `Int8Matrix`, all with the same scales, or tensors
    """
    if any(not isinstance(w, Int8Matrix) or w.depth % GROUP for w in parts):
        return tf.concat([as_floats(w) for w in parts], axis=0)
    numbers = tf.concat([w.numbers for w in parts], axis=1)
    return Int8Matrix(numbers, parts[0].scales, sum(w.depth for w in parts))


@form(
    lambda ops, x, w: native_int8_product(ops, x, w.numbers, w.scales),
    where=lambda x, w: int8_ops(),
)
def int8_product(x: Any, w: Int8Matrix) -> Any:
    """Round each row of x to int8 and multiply it.

    A row with NaN or infinity gives NaN.

    :param x: float32 [..., depth]
    :return: [..., channels]
    """
    if not in_portable_ops():
        _warn_of_speed()
    largest = tf.reduce_max(tf.abs(x), axis=-1, keepdims=True)
    finite = tf.reduce_all(tf.math.is_finite(x), axis=-1, keepdims=True)
    counts = tf.logical_and(finite, largest >= _LEAST)
    # also where the row does not count, so that no integer is made of NaN
    safe = tf.where(counts, largest, tf.ones_like(largest))
    rounded = tf.round(tf.where(counts, x, tf.zeros_like(x)) * (MOST / safe))
    scale = tf.where(counts, safe / MOST, tf.where(finite, tf.zeros_like(safe), float("nan") * safe))
    integers = w.integers()
    # float32 adds these integers without rounding, in any order
    sums = [
        tf.cast(tf.tensordot(rounded[..., k : k + _EXACT], integers[k : k + _EXACT], 1), tf.int32)
        for k in range(0, w.depth, _EXACT)
    ]
    return tf.cast(tf.add_n(sums), tf.float32) * (scale * w.scales)


@functools.cache
def _warn_of_speed() -> None:
    """Log once that products take long here."""
    if tf.config.get_visible_devices("GPU"):
        reason, fix = "there is none for GPUs", "search on the CPU (++device cpu), or"
    else:
        reason, fix = "it can't be used here", "see returnn-tf doctor, or"
    log.warn(
        "quantize: products with int8 need the native op int8, and %s: matrices are converted for each product, which "
        "takes about three times as long as float32. To search faster, %s remove quantize." % (reason, fix)
    )
