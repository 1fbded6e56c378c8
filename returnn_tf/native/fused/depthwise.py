"""Depthwise convolution along time in one op with padding and bias, with gradients."""

from __future__ import annotations

from functools import partial
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.custom_gradient import register_once
from returnn_tf.util.lazy_tf import tf


def depthwise_ops() -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason)."""
    return native_op("depthwise", self_test)


def native_depthwise(
    ops: Any, x: tf.Tensor, w: tf.Tensor, bias: Optional[tf.Tensor], *, dilation: int, left: int, right: int
) -> tf.Tensor:
    """Compute ``y[n, t, c] = bias[c] + sum over k of w[k, c] * x[n, t + k * dilation - left, c]``, in float32.

    :param ops: what `depthwise_ops` returned
    :param x: [batch, frames, channels]
    :param w: [taps, channels]
    :param bias: [channels]
    :param left: zeros in front of the first frame, ``right`` behind the last one
    :return: [batch, max(0, frames + left + right - (taps - 1) * dilation), channels]
    """
    _register_gradients(ops)
    biases = [] if bias is None else [bias]
    return ops.rtf_depthwise(x=x, w=w, bias=biases, dilation=dilation, left=left, right=right)


def _register_gradients(ops: Any) -> None:
    """Register the gradient once, and the gradient of the gradient, which is made of the same ops."""
    register_once(RtfDepthwise=partial(_gradient, ops), RtfDepthwiseGrad=partial(_second_gradient, ops))


def _window(op: Any) -> dict[str, int]:
    return {name: op.get_attr(name) for name in ("dilation", "left", "right")}


def _gradient(ops: Any, op: Any, dy: Any) -> list[Any]:
    dx, dw, dbias = ops.rtf_depthwise_grad(dy=dy, x=op.inputs[0], w=op.inputs[1], **_window(op))
    return [dx, dw, *([dbias] if op.get_attr("biases") else [])]


def _second_gradient(ops: Any, op: Any, ddx: Any, ddw: Any, ddbias: Any) -> list[Any]:
    # The sum of dx * ddx, dw * ddw and dbias * ddbias is that of dy and the result for (ddx, w), (x, ddw) and ddbias.
    dy, x, w = op.inputs
    of_x, of_w = (native_depthwise(ops, *pair, None, **_window(op)) for pair in ((ddx, w), (x, ddw)))
    dx, _, _ = ops.rtf_depthwise_grad(dy=dy, x=x, w=ddw, **_window(op))
    _, dw, _ = ops.rtf_depthwise_grad(dy=dy, x=ddx, w=w, **_window(op))
    return [of_x + of_w + ddbias, dx, dw]


@register_op(
    "depthwise",
    kernels=("depthwise/depthwise_cpu.cc",),
    bindings=("depthwise/depthwise_op.cc",),
    cuda=("depthwise/depthwise_cuda.cu",),
    twice_differentiable=True,
)
def self_test(ops: Any) -> None:
    """Compare with numpy, with more frames and channels than are filtered at a time.

    :raises NativeOpError: they differ
    """
    rng = np.random.RandomState(1)
    for frames, channels, window in ((5, 3, (2, 3, 1)), (150, 70, (1, 4, 5))):
        dilation, left, right = window

        def op(x: tf.Tensor, w: tf.Tensor, bias: tf.Tensor) -> list[tf.Tensor]:
            options = {"dilation": dilation, "left": left, "right": right}  # noqa: B023
            return [native_depthwise(ops, x, w, given, **options) for given in (None, bias)]

        def formula(x: NDArray[Any], w: NDArray[Any], bias: NDArray[Any]) -> list[NDArray[Any]]:
            y = _formula(x, w, *window)  # noqa: B023
            return [y, y + bias]

        compare(
            "depthwise", op, formula, [rng.normal(0, 1, s) for s in ((2, frames, channels), (4, channels), channels)]
        )


def _formula(x: NDArray[Any], w: NDArray[Any], dilation: int, left: int, right: int) -> NDArray[Any]:
    padded = np.pad(x, [(0, 0), (left, right), (0, 0)])
    n_out = padded.shape[1] - (len(w) - 1) * dilation
    y: NDArray[Any] = sum(padded[:, k * dilation :][:, :n_out] * w[k] for k in range(len(w)))
    return y
