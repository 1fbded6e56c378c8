"""Batch normalisation and an activation in one op, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare
from returnn_tf.native.fused.activate_gradients import value_of
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.custom_gradient import register_once
from returnn_tf.util.lazy_tf import tf


def batch_norm_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("batch_norm", self_test)


def native_batch_norm(
    ops: Any,
    x: tf.Tensor,
    mask: Optional[tf.Tensor],
    scale: Optional[tf.Tensor],
    shift: Optional[tf.Tensor],
    epsilon: float,
    *,
    function: str = "identity",
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Compute ``function((x - mean) / sqrt(variance + epsilon) * scale + shift)`` by moments over rows, in float32.

    :param ops: what `batch_norm_ops` returned
    :param x: [..., width]
    :param mask: bool, one for each row of ``x``: all axes but the last one; None: the moments are those of all rows
    :param scale: [width], or None; so is ``shift``
    :param function: one of the values of `returnn_tf.native.fused.activate.FUNCTIONS`
    :return: the result; mean and variance [width], as constants
    """
    _register_gradients(ops)
    masks, scales, shifts = ([] if given is None else [given] for given in (mask, scale, shift))
    mean, variance = ops.rtf_batch_moments(x=x, mask=masks)
    y = ops.rtf_batch_norm(
        x=x, mean=mean, variance=variance, mask=masks, scale=scales, shift=shifts, epsilon=epsilon, function=function
    )
    return y, mean, variance


def followed_by(ops: Any, op: Any, function: str) -> tf.Tensor:
    """Return the result of an RtfBatchNorm without a function, again with one, by the same moments.

    :param ops: what `batch_norm_ops` returned
    :param function: one of the values of `returnn_tf.native.fused.activate.FUNCTIONS`
    """
    x, mean, variance, *rest = op.inputs
    return ops.rtf_batch_norm(x=x, mean=mean, variance=variance, **_lists(op, rest), **_attrs(op, function))


def _lists(op: Any, inputs: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the inputs from the mask on, as lists of the inputs of an op by name."""
    left = list(inputs)
    return {name: [left.pop(0) for _ in range(op.get_attr(name + "s"))] for name in ("mask", "scale", "shift")}


def _attrs(op: Any, function: Optional[str] = None) -> dict[str, Any]:
    own = tf.compat.as_str(op.get_attr("function"))
    return {"epsilon": op.get_attr("epsilon"), "function": own if function is None else function}


def _register_gradients(ops: Any) -> None:
    """Register the gradient once, and the gradient of the gradient, which is in plain TensorFlow."""
    register_once(RtfBatchMoments=None, RtfBatchNorm=partial(_gradient, ops), RtfBatchNormGrad=_second_gradient)


def _gradient(ops: Any, op: Any, dy: Any) -> list[Any]:
    x, mean, variance, *rest = op.inputs
    lists = _lists(op, rest)
    dx, dscale, dshift = ops.rtf_batch_norm_grad(x=x, mean=mean, variance=variance, dy=dy, **lists, **_attrs(op))
    given = [*([dscale] if lists["scale"] else []), *([dshift] if lists["shift"] else [])]
    return [dx, None, None, *[None for _ in lists["mask"]], *given]


def _second_gradient(op: Any, ddx: Any, ddscale: Any, ddshift: Any) -> list[Any]:
    x, _, _, *rest = op.inputs
    dy, lists, attrs = rest.pop(), _lists(op, rest), _attrs(op)
    params = {name: lists[name][0] for name in ("scale", "shift") if lists[name]}
    wanted = [ddx, *({"scale": ddscale, "shift": ddshift}[name] for name in params)]
    sources = [x, *params.values(), dy]
    with tf.GradientTape() as outer:
        outer.watch(sources)
        with tf.GradientTape() as inner:
            inner.watch(sources)
            y = _plain(x, lists["mask"], params, attrs["epsilon"], attrs["function"])
        first = inner.gradient(y, sources[:-1], output_gradients=dy)
        loss = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(first, wanted)])
    dx, *dparams, ddy = outer.gradient(loss, sources, unconnected_gradients="zero")
    return [dx, None, None, *[None for _ in lists["mask"]], *dparams, ddy]


def _plain(x: Any, masks: Sequence[Any], params: dict[str, Any], epsilon: float, function: str) -> Any:
    """Return the result of the op in plain TensorFlow."""
    rows = tf.reshape(x, [-1, x.shape[-1]])
    valid = tf.reshape(tf.cast(masks[0], x.dtype), [-1, 1]) if masks else tf.ones_like(rows[:, :1])
    count = tf.maximum(tf.reduce_sum(valid), 1.0)
    distance = rows - tf.reduce_sum(rows * valid, axis=0) / count
    variance = tf.reduce_sum(distance * distance * valid, axis=0) / count
    y = distance * tf.math.rsqrt(variance + epsilon) * params.get("scale", 1.0) + params.get("shift", 0.0)
    return tf.reshape(value_of(function, y), tf.shape(x))


@register_op(
    "batch_norm",
    kernels=("activate/batch_norm_cpu.cc",),
    bindings=("activate/batch_norm_op.cc",),
    cuda=("activate/batch_norm_cuda.cu",),
    twice_differentiable=True,
)
def self_test(ops: Any) -> None:
    """Compare with numpy, with and without mask, scale, shift and function.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    for rows, width in ((37, 21), (70, 64)):
        mask = rng.randint(0, 3, rows) > 0

        def op(x: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor) -> list[tf.Tensor]:
            whole = native_batch_norm(ops, x, tf.constant(mask), scale, shift, 0.01, function="swish")  # noqa: B023
            return [whole[0], native_batch_norm(ops, x * scale + shift, None, None, None, 0.5)[0]]

        def formula(x: NDArray[Any], scale: NDArray[Any], shift: NDArray[Any]) -> list[NDArray[Any]]:
            y = _formula(x, x[mask], 0.01) * scale + shift  # noqa: B023
            z = x * scale + shift
            return [y / (1 + np.exp(-y)), _formula(z, z, 0.5)]

        compare("batch norm", op, formula, [rng.normal(0.5, 1, shape) for shape in ((rows, width), width, width)])


def _formula(x: NDArray[Any], valid: NDArray[Any], epsilon: float) -> NDArray[Any]:
    y: NDArray[Any] = (x - valid.mean(0)) / np.sqrt(valid.var(0) + epsilon)
    return y
