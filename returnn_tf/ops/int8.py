"""Matrices of int8 with a scale for each channel, and products in which activations are rounded to int8, too.

A matrix w [depth, channels] is stored as integers q from -127 to 127 and scales s: ``w[k, c] = q[k, c] s[c]``, where
the largest number of a channel is 127. A row of activations is rounded in the same way while a graph runs. Sums of
integers are exact, hence a product is the same bit by bit in all its forms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.dispatch import form
from returnn_tf.native.int8 import GROUP, MOST, OFFSET, int8_ops, native_int8_product
from returnn_tf.ops.rounded import RoundedMatrix, note_plain_product
from returnn_tf.util.lazy_tf import tf

#: Rows and channels whose largest number is smaller count as 0.
_LEAST = 2.0**-100
#: Integers of a product that float32 adds without rounding.
_EXACT = 2**24 // MOST**2


@dataclasses.dataclass(frozen=True)
class Int8Matrix(RoundedMatrix):
    """A matrix of int8, whose numbers are stored as uint8 with an offset of 128."""

    dtype = "int8"
    group = GROUP
    parts = {"int8": "uint8", "scales": "float32"}
    longest = 2**31 // MOST**2  # whose sum fits in int32

    @classmethod
    def round(cls, w: NDArray[Any]) -> list[NDArray[Any]]:
        """Round half to even."""
        numbers, scales = np.empty(cls.stored_shape(*w.shape), "uint8"), np.empty(len(w), "float32")
        for panels, channels in cls.blocks(*w.shape):
            part = w[channels].astype("float32", copy=False)
            largest = np.abs(part).max(axis=1)
            largest = np.where(largest < _LEAST, np.float32(0), largest)
            with np.errstate(divide="ignore"):
                factors = np.where(largest > 0, np.float32(MOST) / largest, np.float32(0))
            integers = (np.rint(part * factors[:, None]) + OFFSET).astype("uint8")
            numbers[panels] = cls.to_panels(integers, OFFSET)
            scales[channels] = largest / np.float32(MOST)
        return [numbers, scales]

    @classmethod
    def restored(cls, parts: Sequence[NDArray[Any]], width: int, depth: int) -> NDArray[np.float32]:
        """Return integers times scales."""
        numbers, scales = parts
        rounded = cls.from_panels(numbers, width, depth).astype("float32") - np.float32(OFFSET)
        value: NDArray[np.float32] = rounded * scales[:, None]
        return value

    def product(self, x: Any) -> Any:
        """Round each row of x to int8 and multiply it."""
        return int8_product(x, self)

    def integers(self) -> Any:
        """Return the integers as floats, [depth, width]."""
        return tf.cast(self.laid_out(), tf.float32) - OFFSET

    def _floats(self, numbers: Any, scales: Any) -> Any:
        return (tf.cast(numbers, tf.float32) - OFFSET) * scales


@form(
    lambda ops, x, w: native_int8_product(ops, x, w.numbers, w.scales),
    where=lambda x, w: int8_ops(),
)
def int8_product(x: Any, w: Int8Matrix) -> Any:
    """Round each row of x to int8 and multiply it.

    A row with NaN or infinity gives NaN.

    :param x: float32 [..., depth]
    :return: [..., width]
    """
    note_plain_product("int8")
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
