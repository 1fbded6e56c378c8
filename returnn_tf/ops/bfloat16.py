"""Matrices of bfloat16, and products in which activations are rounded to bfloat16, too, with sums in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.bfloat16 import GROUP, bfloat16_ops, native_bfloat16_product
from returnn_tf.native.dispatch import form
from returnn_tf.ops.rounded import RoundedMatrix, note_plain_product
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True)
class Bfloat16Matrix(RoundedMatrix):
    """A matrix of bfloat16."""

    dtype = "bfloat16"
    group = GROUP
    parts = {"bfloat16": "bfloat16"}

    @classmethod
    def round(cls, w: NDArray[Any]) -> list[NDArray[Any]]:
        """Round half to even."""
        dtype = tf.bfloat16.as_numpy_dtype
        numbers = np.empty(cls.stored_shape(*w.shape), dtype)
        for panels, channels in cls.blocks(*w.shape):
            numbers[panels] = cls.to_panels(w[channels].astype(dtype), 0)
        return [numbers]

    @classmethod
    def restored(cls, parts: Sequence[NDArray[Any]], width: int, depth: int) -> NDArray[np.float32]:
        """Return the same numbers."""
        value: NDArray[np.float32] = cls.from_panels(parts[0], width, depth).astype("float32")
        return value

    def product(self, x: Any) -> Any:
        """Round x to bfloat16 and multiply it, with sums in float32."""
        return bfloat16_product(x, self)

    def _floats(self, numbers: Any, scales: Any) -> Any:
        return tf.cast(numbers, tf.float32)


@form(
    lambda ops, x, w: native_bfloat16_product(ops, x, w.numbers, w.width),
    where=lambda x, w: bfloat16_ops(),
)
def bfloat16_product(x: Any, w: Bfloat16Matrix) -> Any:
    """Round x to bfloat16 and multiply it, with sums in float32.

    :param x: float32 [..., depth]
    :return: [..., width]
    """
    note_plain_product("bfloat16")
    rounded = tf.cast(tf.cast(x, tf.bfloat16), tf.float32)
    return tf.tensordot(rounded, w.values(), 1)
