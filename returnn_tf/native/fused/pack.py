"""The frames of a padded batch without its padding, and back, with gradients; see ``native_ops/pack/pack.h``."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare
from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.custom_gradient import register_once
from returnn_tf.util.known_shapes import known_size
from returnn_tf.util.lazy_tf import tf


def pack_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("pack", self_test)


def native_pack(ops: Any, x: tf.Tensor, lengths: tf.Tensor, least_share: float) -> tf.Tensor:
    """Take the frames before the end of each sequence, if at least a share of the frames are padding.

    :param ops: what `pack_ops` returned
    :param x: float32 [batch, frames, width]
    :param lengths: int32 [batch]
    :return: [1, packed frames, width]; with less padding all frames
    """
    _register_gradients(ops)
    return ops.rtf_pack(x=x, lengths=lengths, least_share=least_share)


def native_unpack(ops: Any, y: tf.Tensor, lengths: tf.Tensor, frames: tf.Tensor, least_share: float) -> tf.Tensor:
    """Undo `native_pack`, with 0 in what was not packed.

    :param frames: their number in the padded batch, int32 scalar
    :return: [batch, frames, width]
    """
    _register_gradients(ops)
    return ops.rtf_unpack(y=y, lengths=lengths, frames=frames, least_share=least_share)


def packed_rows(ops: Any, lengths: tf.Tensor, frames: tf.Tensor, least_share: float) -> tf.Tensor:
    """Return the indices of the rows of [batch * frames, width] that `native_pack` takes, int64 [packed frames]."""
    return ops.rtf_packed_rows(lengths=lengths, frames=frames, least_share=least_share)


def _register_gradients(ops: Any) -> None:
    """Register each op as the gradient of the other, once."""
    register_once(RtfPack=partial(_of_pack, ops), RtfUnpack=partial(_of_unpack, ops))


def _of_pack(ops: Any, op: Any, dy: Any) -> list[Any]:
    x, lengths = op.inputs
    return [native_unpack(ops, dy, lengths, known_size(x, 1), op.get_attr("least_share")), None]


def _of_unpack(ops: Any, op: Any, dx: Any) -> list[Any]:
    return [native_pack(ops, dx, op.inputs[1], op.get_attr("least_share")), None, None]


@register_op("pack", kernels=("pack/pack_cpu.cc",), bindings=("pack/pack_op.cc",), twice_differentiable=True)
def self_test(ops: Any) -> None:
    """Compare with numpy: packed, and with too little padding for it.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    batch, frames, width = 4, 37, 21
    lengths = np.array([5, 0, 37, 20], "int32")
    valid = np.arange(frames) < lengths[:, None]
    for share in (0.2, 0.9):
        kept = np.flatnonzero(valid if share == 0.2 else np.ones_like(valid))

        def op(x: tf.Tensor) -> list[tf.Tensor]:
            y = native_pack(ops, x, tf.constant(lengths), share)  # noqa: B023
            return [y, native_unpack(ops, 2.0 * y, tf.constant(lengths), tf.constant(frames), share)]  # noqa: B023

        def formula(x: NDArray[Any]) -> list[NDArray[Any]]:
            rows = x.reshape(batch * frames, width)
            back = np.zeros_like(rows)
            back[kept] = 2.0 * rows[kept]  # noqa: B023
            return [rows[kept][None], back.reshape(x.shape)]  # noqa: B023

        compare("pack", op, formula, [rng.normal(0, 1, (batch, frames, width))])
        rows = packed_rows(ops, tf.constant(lengths), tf.constant(frames), share)
        if not np.array_equal(rows, kept):
            raise NativeOpError("the rows of packed frames are wrong")
