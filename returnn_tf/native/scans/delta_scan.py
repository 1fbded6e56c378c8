"""The native delta rule, with gradients."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.native.comparison import compare_recurrence
from returnn_tf.native.library import native_op
from returnn_tf.native.sources import register_op
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf

_NAMES = ("q", "k", "v", "a", "b", "g", "first")


def delta_scan_ops(dtype: tf.DType) -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason) or lack this type.

    :param dtype: of the arrays; there are kernels for float32
    """
    return native_op("delta_scan", self_test) if dtype == tf.float32 else None


def native_delta_scan(
    ops: Any,
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    a: tf.Tensor,
    b: tf.Tensor,
    log_decay: tf.Tensor,
    first: tf.Tensor,
    lengths: tf.Tensor,
    *,
    reverse: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Run the delta rule with decays on a ragged batch, in float32.

    ``S_t = diag(exp(log_decay_t)) S_{t-1} + b_t (S_{t-1}^T a_t)^T + k_t v_t^T,  o_t = S_t^T q_t``

    The gradient keeps the inputs, ``S_{t-1}^T a_t`` and the last state, and runs over the frames again.

    :param ops: what `delta_scan_ops` returned
    :param q: [time, batch, heads, keys]; and so ``k``, ``a`` and ``b``
    :param v: [time, batch, heads, values]
    :param log_decay: [time, batch, heads, keys], or [time, batch, heads, 1]: one decay for the head; at most 0
    :param first: state before the first frame [batch, heads, keys, values]
    :param lengths: int32 [batch], at most ``time``
    :param reverse: run each sequence from its last to its first frame; arrays keep the order of time
    :return: o [time, batch, heads, values], 0 after the end of each sequence; state after the frame that ran last
    """

    @custom_gradient
    def run(*arrays: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable[..., Any]]:
        inputs = dict(zip(_NAMES, arrays), lengths=lengths, reverse=reverse)
        out = ops.rtf_delta_scan(**inputs)

        def gradient(d_o: tf.Tensor, d_last: tf.Tensor) -> list[tf.Tensor]:
            return list(ops.rtf_delta_scan_grad(u=out.u, last=out.last, d_o=d_o, d_last=d_last, **inputs))

        return (out.o, out.last), gradient

    o, last = run(q, k, v, a, b, log_decay, first)
    o.set_shape(v.shape)
    last.set_shape(first.shape)
    return o, last


@register_op(
    "delta_scan",
    kernels=("delta_scan/delta_scan_cpu.cc",),
    bindings=("delta_scan/delta_scan_op.cc",),
    cuda=("delta_scan/delta_scan_cuda.cu",),
    capability=(7, 0),
)
def self_test(ops: Any) -> None:
    """Compare the op and its gradient with numpy on a small ragged batch, in both directions.

    :raises NativeOpError: they differ
    """

    def op(*arrays: tf.Tensor, **options: Any) -> tuple[tf.Tensor, tf.Tensor]:
        q, k, v, a, b, g, first = arrays
        return native_delta_scan(ops, q, k, v, a, b, -tf.square(g), first, **options)

    for one_decay in (False, True):
        compare_recurrence("delta rule", op, _numpy_delta_scan, partial(_shapes, one_decay))


def _shapes(one_decay: bool, t: int, b: int, n: int) -> list[tuple[int, ...]]:
    keys, values = n // 4, n // 3
    arrays = [(t, b, 2, d) for d in (keys, keys, values, keys, keys, 1 if one_decay else keys)]
    return [*arrays, (b, 2, keys, values)]


def _numpy_delta_scan(*arrays: NDArray[Any], lengths: NDArray[Any], reverse: bool) -> list[NDArray[Any]]:
    """Evaluate the formula of `native_delta_scan` frame by frame, with log decays ``-g^2``."""
    q, k, v, a, b, g, state = arrays
    o = np.zeros_like(v)
    for t in range(len(v))[:: -1 if reverse else 1]:
        runs = (t < lengths)[:, None, None]
        read = np.einsum("bhk,bhkv->bhv", a[t], state)
        new = np.exp(-(g[t] ** 2))[..., None] * state
        new += b[t][..., None] * read[..., None, :] + k[t][..., None] * v[t][..., None, :]
        o[t] = np.where(runs, np.einsum("bhk,bhkv->bhv", q[t], new), 0)
        state = np.where(runs[..., None], new, state)
    return [o, state]
