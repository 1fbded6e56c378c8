"""Layer normalisation in one op, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.custom_gradient import register_once
from returnn_tf.util.lazy_tf import tf


def norm_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("norm", self_test)


def native_norm(
    ops: Any, x: tf.Tensor, scale: Optional[tf.Tensor], bias: Optional[tf.Tensor], epsilon: float
) -> tf.Tensor:
    """Compute ``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the last axis, in float32.

    :param ops: what `norm_ops` returned
    :param x: [..., width]
    :param scale: [width], or None; so is ``bias``
    """
    _register_gradients(ops)
    scales, biases = ([] if param is None else [param] for param in (scale, bias))
    return ops.rtf_norm(x=x, scale=scales, bias=biases, epsilon=epsilon)[0]


def _register_gradients(ops: Any) -> None:
    """Register the gradient once, and the gradient of the gradient, which is in plain TensorFlow."""
    register_once(RtfNorm=partial(_gradient, ops), RtfNormGrad=_second_gradient)


def _gradient(ops: Any, op: Any, dy: Any, dmean: Any, dfactor: Any) -> list[Any]:
    del dmean, dfactor  # nothing but the gradient reads these, and its own gradient takes them as functions of x
    x, scales = op.inputs[0], list(op.inputs)[1 : 1 + op.get_attr("scales")]
    dx, dscale, dbias = ops.rtf_norm_grad(dy=dy, x=x, mean=op.outputs[1], factor=op.outputs[2], scale=scales)
    return [dx, *([dscale] if scales else []), *([dbias] if op.get_attr("biases") else [])]


def _second_gradient(op: Any, ddx: Any, ddscale: Any, ddbias: Any) -> list[Any]:
    dy, x, _, factor, *scales = op.inputs
    rest = tf.range(tf.rank(x) - 1)
    sources: Sequence[Any] = [dy, x, *scales]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(centred * centred, axis=-1, keepdims=True)
        epsilon = tf.stop_gradient(tf.reshape(factor, tf.shape(variance)) ** -2 - variance)
        factor = tf.math.rsqrt(variance + epsilon)
        z = centred * factor
        g = dy * scales[0] if scales else dy
        dx = g - tf.reduce_mean(g, axis=-1, keepdims=True) - z * tf.reduce_mean(g * z, axis=-1, keepdims=True)
        loss = tf.reduce_sum(dx * factor * ddx) + tf.reduce_sum(tf.reduce_sum(dy * z, axis=rest) * ddscale)
        loss += tf.reduce_sum(tf.reduce_sum(dy, axis=rest) * ddbias)
    ddy, dx, *dscales = tape.gradient(loss, sources, unconnected_gradients="zero")
    return [ddy, dx, None, None, *dscales]


@register_op(
    "norm",
    kernels=("norm/norm_cpu.cc",),
    bindings=("norm/norm_op.cc",),
    cuda=("norm/norm_cuda.cu",),
    twice_differentiable=True,
)
def self_test(ops: Any) -> None:
    """Compare with numpy, with and without scale and bias.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)

    def op(x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor) -> list[tf.Tensor]:
        return [native_norm(ops, x, scale, bias, 0.01), native_norm(ops, x + scale + bias, None, None, 0.5)]

    def formula(x: NDArray[Any], scale: NDArray[Any], bias: NDArray[Any]) -> list[NDArray[Any]]:
        return [_formula(x, 0.01) * scale + bias, _formula(x + scale + bias, 0.5)]

    for rows, width in ((37, 21), (70, 64)):
        compare("norm", op, formula, [rng.normal(0.5, 1, shape) for shape in ((rows, width), width, width)])


def _formula(x: NDArray[Any], epsilon: float) -> NDArray[Any]:
    y: NDArray[Any] = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return y
