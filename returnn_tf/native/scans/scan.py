"""Native diagonal linear recurrences, with gradients."""

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

Parts = tuple["tf.Tensor", ...]


def scan_ops(dtype: tf.DType) -> Optional[Any]:
    """Return the ops, or None if they cannot be used here (a warning gives the reason) or lack this type.

    :param dtype: of the arrays; there are kernels for float32
    """
    return native_op("scan", self_test) if dtype == tf.float32 else None


def native_scan(
    ops: Any, a: Parts, b: Parts, h0: Parts, lengths: tf.Tensor, *, reverse: bool = False
) -> tuple[Parts, Parts]:
    """Compute ``h[t] = a[t] * h[t-1] + b[t]`` elementwise on a ragged batch, in float32.

    Arrays are tuples of one tensor, or of the real and the imaginary parts of complex numbers.

    :param ops: what `scan_ops` returned
    :param a: [time, batch, n]; or [n], the same in all frames
    :param b: [time, batch, n]
    :param h0: initial state [batch, n]
    :param lengths: int32 [batch], at most ``time``
    :param reverse: run each sequence from its last to its first frame; arrays keep the order of time
    :return: h [time, batch, n], 0 after the end of each sequence; h [batch, n] after the last step
    """
    parts, constant = len(b), a[0].shape.rank == 1

    @custom_gradient
    def run(*arrays: tf.Tensor) -> tuple[Parts, Callable[..., Any]]:
        a, b, h0 = arrays[:parts], arrays[parts : 2 * parts], arrays[2 * parts :]
        out = ops.rtf_scan(a=a, b=b, h0=h0, lengths=lengths, reverse=reverse)

        def gradient(*grads: tf.Tensor) -> list[tf.Tensor]:
            back = ops.rtf_scan_grad(
                a=a, h0=h0, h=out.h, dh=grads[:parts], dh_last=grads[parts:], lengths=lengths, reverse=reverse
            )
            da = [tf.reduce_sum(x, axis=0) for x in back.da] if constant else back.da
            return [*da, *back.db, *back.dh0]

        return (*out.h, *out.h_last), gradient

    results = run(*a, *b, *h0)
    for h, like in zip(results, (*b, *h0)):
        h.set_shape(like.shape)
    return tuple(results[:parts]), tuple(results[parts:])


@register_op("scan", kernels=("scan/scan_cpu.cc",), bindings=("scan/scan_op.cc",), cuda=("scan/scan_cuda.cu",))
def self_test(ops: Any) -> None:
    """Compare the op and its gradient with numpy on a small ragged batch, in both directions.

    :raises NativeOpError: they differ
    """
    for parts in (1, 2):
        for constant in (False, True):

            def op(*arrays: tf.Tensor, parts: int = parts, **options: Any) -> list[tf.Tensor]:
                a, b, h0 = (arrays[k * parts : (k + 1) * parts] for k in range(3))
                h, last = native_scan(ops, a, b, h0, **options)
                return [*h, *last]

            compare_recurrence("linear recurrence", op, partial(_numpy_scan, parts), partial(_shapes, parts, constant))


def _shapes(parts: int, constant: bool, t: int, b: int, n: int) -> list[tuple[int, ...]]:
    factors: tuple[int, ...] = (n,) if constant else (t, b, n)
    return [factors] * parts + [(t, b, n)] * parts + [(b, n)] * parts


def _numpy_scan(parts: int, *arrays: NDArray[Any], lengths: NDArray[Any], reverse: bool) -> list[NDArray[Any]]:
    """Evaluate the formula of `native_scan` frame by frame."""
    numbers = [arrays[k] + 1j * arrays[k + 1] if parts == 2 else arrays[k] for k in range(0, 3 * parts, parts)]
    a, b, h = numbers
    out = np.zeros_like(b)
    for t in range(len(b))[:: -1 if reverse else 1]:
        runs = (t < lengths)[:, None]
        h = np.where(runs, (a if a.ndim == 1 else a[t]) * h + b[t], h)
        out[t] = np.where(runs, h, 0)
    return [part(x) for x in (out, h) for part in (np.real, np.imag)[:parts]]
