"""Mean and variance over axes, and normalisation by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.native.dispatch import LEAST_WIDTH, form, plain_form
from returnn_tf.native.fused.batch_norm import batch_norm_ops, native_batch_norm
from returnn_tf.native.fused.norm import native_norm, norm_ops
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw, ragged
from returnn_tf.ops.frames.reduce import fill_masked, masked_count
from returnn_tf.ops.frames.shape import size_of
from returnn_tf.util.lazy_tf import tf


def moments(x: Any, axes: Sequence[int], mask: Optional[Any] = None) -> tuple[Any, Any]:
    """Compute mean and (biased) variance over axes, kept with size 1; 0 without any entry.

    :param x: float tensor [...]
    :param mask: bool of the rank of ``x``, the entries to include; None: all
    """
    if mask is None:
        mean, variance = tf.nn.moments(x, list(axes), keepdims=True)
        sizes = [size_of(x, axis) for axis in axes]
        if all(isinstance(size, int) for size in sizes):
            return mean, variance
        some = tf.reduce_all(tf.stack(sizes) > 0)  # their product may overflow
        return tuple(tf.where(some, moment, tf.zeros_like(moment)) for moment in (mean, variance))
    count = tf.maximum(masked_count(x, axes, mask, keepdims=True), 1)
    mean = tf.reduce_sum(fill_masked(x, mask, 0), list(axes), keepdims=True) / count
    square = fill_masked(tf.square(x - mean), mask, 0)
    return mean, tf.reduce_sum(square, list(axes), keepdims=True) / count


def normalize(x: Any, mean: Any, variance: Any, epsilon: float, scale: Optional[Any], shift: Optional[Any]) -> Any:
    """Compute ``(x - mean) / sqrt(variance + epsilon) * scale + shift``; everything broadcasts to ``x``."""
    # Not "+ epsilon": where scale and shift are constants, as in a frozen graph, TensorFlow 2.16 on CPU takes that for
    # its own layer normalisation, which has an epsilon of 0.001.
    factor = tf.math.rsqrt(variance - (-epsilon))
    if scale is not None:
        factor *= scale
    offset = -mean * factor if shift is None else shift - mean * factor
    return x * tf.cast(factor, x.dtype) + tf.cast(offset, x.dtype)


def _is_wide(x: Any) -> bool:
    return bool(x.dtype == tf.float32 and x.shape.rank and (x.shape[-1] or 0) >= LEAST_WIDTH)


def _ops_for(x: Any, *_: Any) -> Optional[Any]:
    ops = norm_ops() if _is_wide(x) else None
    return ops if ops is not None and pays(NORM_TRIAL, x.shape[-1], x.dtype) else None


@form(native_norm, where=_ops_for)
def layer_norm(x: Any, scale: Optional[Any], shift: Optional[Any], epsilon: float) -> Any:
    """Compute `normalize` by mean and variance over the last axis.

    :param scale: of the size of the last axis, or None; so is ``shift``
    """
    return normalize(x, *moments(x, [x.shape.rank - 1]), epsilon, scale, shift)


def _batch_norm_ops_for(x: Any, *_: Any) -> Optional[Any]:
    ops = batch_norm_ops() if _is_wide(x) else None
    return ops if ops is not None and pays(BATCH_NORM_TRIAL, x.shape[-1], x.dtype) else None


def _native_batch_norm(
    ops: Any, x: Any, mask: Optional[Any], scale: Optional[Any], shift: Optional[Any], epsilon: float
) -> tuple[Any, Any, Any]:
    rows = None if mask is None else tf.reshape(tf.broadcast_to(mask, tf.shape(x[..., :1])), [-1])
    scale, shift = (None if param is None else tf.reshape(param, [-1]) for param in (scale, shift))
    return native_batch_norm(ops, x, rows, scale, shift, epsilon)


@form(_native_batch_norm, where=_batch_norm_ops_for)
def batch_norm(
    x: Any, mask: Optional[Any], scale: Optional[Any], shift: Optional[Any], epsilon: float
) -> tuple[Any, Any, Any]:
    """Compute `normalize` by mean and variance over all axes but the last one.

    :param mask: bool of the rank of ``x``, the frames whose moments these are; None: all
    :param scale: of the size of the last axis, with any axes of size 1, or None; so is ``shift``
    :return: the result; mean and variance, of the size of the last axis, for use without gradient
    """
    mean, variance = moments(x, range(x.shape.rank - 1), mask)
    return normalize(x, mean, variance, epsilon, scale, shift), mean, variance


def _case(size: Size) -> Case:
    inputs = draw((1.0, (size.frames, size.batch, size.width)), (1.0, (size.width,)), (1.0, (size.width,)))

    def native(ops: Any, x: Any, scale: Any, shift: Any) -> list[Any]:
        return [native_norm(ops, x, scale, shift, 1e-6)]

    return Case(inputs, native, lambda *x: [plain_form(layer_norm)(*x, 1e-6)])


NORM_TRIAL = Trial("layer norm", "norm", __name__, "NORM_TRIAL", _case, "features", (128, 512, 2048))


def _batch_norm_case(size: Size) -> Case:
    """Return the normalisation over the frames of a ragged batch, with the activation of a Conformer."""
    shape = (size.batch, size.frames, size.width)
    inputs = draw((1.0, shape), (1.0, (size.width,)), (1.0, (size.width,)))
    mask = np.arange(size.frames) < ragged(size)[:, None]

    def native(ops: Any, x: Any, scale: Any, shift: Any) -> list[Any]:
        return [native_batch_norm(ops, x, tf.constant(mask.reshape(-1)), scale, shift, 1e-3, function="swish")[0]]

    def plain(*x: Any) -> list[Any]:
        return [tf.nn.silu(plain_form(batch_norm)(x[0], tf.constant(mask[:, :, None]), *x[1:], 1e-3)[0])]

    return Case(inputs, native, plain)


BATCH_NORM_TRIAL = Trial(
    "batch normalisation",
    "batch_norm",
    __name__,
    "BATCH_NORM_TRIAL",
    _batch_norm_case,
    "features",
    (128, 512, 2048),
)
