"""Native selective state spaces, with gradients."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare_recurrence
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf

Result = tuple["tf.Tensor", "tf.Tensor"]


def selective_scan_ops(dtype: tf.DType) -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason) or lack this type.

    :param dtype: of the arrays; there are kernels for float32
    """
    return native_op("selective_scan", self_test) if dtype == tf.float32 else None


def native_selective_scan(
    ops: Any,
    x: tf.Tensor,
    delta: tf.Tensor,
    a: tf.Tensor,
    b: tf.Tensor,
    c: tf.Tensor,
    d: tf.Tensor,
    h0: tf.Tensor,
    lengths: tf.Tensor,
    *,
    reverse: bool = False,
) -> Result:
    """Run a selective state space (Mamba, arXiv 2312.00752) with N states per channel on a ragged batch, in float32.

    ``h = exp(delta a) h + delta x b;  y = sum over the states of c h, plus d x``. The states of all frames are never in
    memory at once: one in 32 is kept for the gradient.

    :param ops: what `selective_scan_ops` returned
    :param x: [time, batch, n]
    :param delta: step sizes [time, batch, n]
    :param a: [N, n], negative
    :param b: [time, batch, N]; likewise ``c``
    :param d: [n]
    :param h0: initial state [batch, N, n]
    :param lengths: int32 [batch], at most ``time``
    :param reverse: run each sequence from its last to its first frame; arrays keep the order of time
    :return: y [time, batch, n], 0 after the end of each sequence; h [batch, N, n] after the last step
    """

    @custom_gradient
    def run(*inputs: tf.Tensor) -> tuple[Result, Callable[..., Any]]:
        out = ops.rtf_selective_scan(*inputs, lengths, reverse=reverse)

        def gradient(dy: tf.Tensor, dh_last: tf.Tensor) -> tuple[tf.Tensor, ...]:
            back = ops.rtf_selective_scan_grad(*inputs, lengths, out.checkpoints, dy, dh_last, reverse=reverse)
            da, dd = tf.reduce_sum(back.da, axis=0), tf.reduce_sum(back.dd, axis=0)
            return back.dx, back.ddelta, da, back.db, back.dc, dd, back.dh0

        return (out.y, out.h_last), gradient

    y, h_last = run(x, delta, a, b, c, d, h0)
    y.set_shape(x.shape)
    h_last.set_shape(h0.shape)
    return y, h_last


@register_op(
    "selective_scan",
    kernels=("selective_scan/selective_scan_cpu.cc",),
    bindings=("selective_scan/selective_scan_op.cc",),
    cuda=("selective_scan/selective_scan_cuda.cu",),
)
def self_test(ops: Any) -> None:
    """Compare the op and its gradient with numpy on a small ragged batch, in both directions.

    :raises NativeOpError: they differ
    """

    def op(x: tf.Tensor, delta: tf.Tensor, a: tf.Tensor, *others: tf.Tensor, **options: Any) -> Result:
        return native_selective_scan(ops, x, delta * delta, -a * a, *others, **options)

    def formula(x: NDArray[Any], delta: NDArray[Any], a: NDArray[Any], *others: NDArray[Any], **options: Any) -> Any:
        return _numpy_selective_scan(x, delta * delta, -a * a, *others, **options)

    compare_recurrence("selective scan", op, formula, _shapes)


def _shapes(t: int, b: int, n: int) -> list[tuple[int, ...]]:
    states = 3
    return [(t, b, n), (t, b, n), (states, n), (t, b, states), (t, b, states), (n,), (b, states, n)]


def _numpy_selective_scan(
    x: NDArray[Any],
    delta: NDArray[Any],
    a: NDArray[Any],
    *others: NDArray[Any],
    lengths: NDArray[Any],
    reverse: bool,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Evaluate the formula of `native_selective_scan` frame by frame."""
    b, c, d, h = others
    out = np.zeros_like(x)
    for t in range(len(x))[:: -1 if reverse else 1]:
        runs = t < lengths
        decay = np.exp(delta[t][:, None, :] * a)
        h = np.where(runs[:, None, None], decay * h + (delta[t] * x[t])[:, None, :] * b[t][:, :, None], h)
        out[t] = np.where(runs[:, None], (c[t][:, :, None] * h).sum(1) + d * x[t], 0)
    return out, h
