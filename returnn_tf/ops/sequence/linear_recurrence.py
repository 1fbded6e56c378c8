"""Diagonal linear recurrences over time, all frames in parallel: ``h[t] = a[t] * h[t-1] + b[t]``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Optional

from returnn_tf.native.dispatch import form, plain_form
from returnn_tf.native.scans.scan import native_scan, scan_ops
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw, ragged
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf

Parts = tuple["tf.Tensor", ...]
"""A real array, or the real and the imaginary part of a complex one."""


def linear_recurrence(
    a: tf.Tensor, b: tf.Tensor, h0: tf.Tensor, lengths: Optional[tf.Tensor] = None, reverse: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute ``h[t] = a[t] * h[t-1] + b[t]`` elementwise, with gradients for ``a``, ``b`` and ``h0``.

    :param a: factors [time, batch, n]; or [n], the same in all frames
    :param b: [time, batch, n], real or complex as ``a`` and ``h0``
    :param h0: initial state [batch, n]
    :param lengths: int [batch], or None if all sequences fill the array
    :param reverse: run each sequence from its last frame to its first one; arrays keep the order of time
    :return: h [time, batch, n], 0 after the end of each sequence; the state of each sequence [batch, n] after the frame
        that ran last (``h0`` without frames)
    """
    a, b, h0 = (tf.convert_to_tensor(x) for x in (a, b, h0))
    if not b.dtype.is_complex:
        (h,), (h_last,) = recurrence_of_parts((a,), (b,), (h0,), lengths, reverse)
        return h, h_last
    a_parts, b_parts, h0_parts = ((tf.math.real(x), tf.math.imag(x)) for x in (a, b, h0))
    h_parts, last = recurrence_of_parts(a_parts, b_parts, h0_parts, lengths, reverse)
    return tf.complex(*h_parts), tf.complex(*last)


def _native(
    ops: Any, a: Parts, b: Parts, h0: Parts, lengths: Optional[tf.Tensor] = None, reverse: bool = False
) -> tuple[Parts, Parts]:
    ends = tf.fill([tf.shape(b[0])[1]], tf.shape(b[0])[0]) if lengths is None else tf.cast(lengths, tf.int32)
    return native_scan(ops, a, b, h0, ends, reverse=reverse)


def _ops_for(_: Parts, b: Parts, *__: Any) -> Any:
    ops = scan_ops(b[0].dtype)
    trial = SCAN_TRIAL if len(b) == 1 else COMPLEX_SCAN_TRIAL
    return ops if ops and pays(trial, b[0].shape[-1], b[0].dtype) else None


@form(_native, where=_ops_for)
def recurrence_of_parts(
    a: Parts, b: Parts, h0: Parts, lengths: Optional[tf.Tensor] = None, reverse: bool = False
) -> tuple[Parts, Parts]:
    """Compute `linear_recurrence`, with complex arrays as pairs of a real and an imaginary part.

    :param a: one array, or a pair of them; likewise ``b`` and ``h0``
    """
    a = tuple(tf.broadcast_to(x, tf.shape(y)) for x, y in zip(a, b))
    one = [1.0, 0.0]
    if lengths is not None:  # a sequence keeps its state in the frames of its padding
        runs = tf.transpose(tf.sequence_mask(lengths, tf.shape(b[0])[0]))[:, :, None]
        a = tuple(tf.where(runs, x, tf.constant(fill, x.dtype)) for x, fill in zip(a, one))
        b = tuple(tf.where(runs, x, tf.zeros([], x.dtype)) for x in b)
    # The initial state is one frame more, before the first one.
    a = tuple(_prepend(tf.fill(tf.shape(x), tf.constant(fill, x.dtype)), y, reverse) for x, y, fill in zip(h0, a, one))
    b = tuple(_prepend(x, y, reverse) for x, y in zip(h0, b))
    states = _scan(a, b, reverse)
    h = tuple(x[:-1] if reverse else x[1:] for x in states)
    last = tuple(x[0] if reverse else x[-1] for x in states)
    return h if lengths is None else tuple(tf.where(runs, x, tf.zeros([], x.dtype)) for x in h), last


def _prepend(frame: tf.Tensor, x: tf.Tensor, reverse: bool) -> tf.Tensor:
    frame = tf.expand_dims(frame, 0)
    return tf.concat([x, frame] if reverse else [frame, x], axis=0)


def product_of_parts(x: Parts, y: Parts) -> Parts:
    """Multiply real or complex arrays, with complex ones as pairs of a real and an imaginary part."""
    if len(x) == 1:
        return (x[0] * y[0],)
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def _sum(x: Parts, y: Parts) -> Parts:
    return tuple(p + q for p, q in zip(x, y))


def _conjugate(x: Parts) -> Parts:
    return (x[0], *(-p for p in x[1:]))


def _scan(a: Parts, b: Parts, reverse: bool) -> Parts:
    """Compute ``h[t] = a[t] h[t-1] + b[t]`` from a state of zero; the first factor does not matter."""
    parts = len(a)

    @custom_gradient
    def run(*arrays: tf.Tensor) -> tuple[Sequence[tf.Tensor], Callable[..., Any]]:
        a, b = arrays[:parts], arrays[parts:]
        h = _doubling(a, b, reverse)

        def gradient(*dh: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # g[t] = dh[t] + conj(a[t+1]) g[t+1];  db = g;  da[t] = g[t] conj(h[t-1])
            following = tuple(_shifted(x, 1, 0.0, not reverse) for x in a)
            db = _scan(_conjugate(following), dh, not reverse)
            before = tuple(_shifted(x, 1, 0.0, reverse) for x in h)
            return (*product_of_parts(db, _conjugate(before)), *db)

        return h, gradient

    states = run(*a, *b)
    return tuple(states) if isinstance(states, (list, tuple)) else (states,)


def _shifted(x: tf.Tensor, frames: Any, fill: float, reverse: bool) -> tf.Tensor:
    """Return x[t - frames], or x[t + frames] with ``reverse``; ``fill`` where there is none."""
    n_frames = tf.shape(x)[0]
    kept = tf.maximum(n_frames - frames, 0)
    part = x[n_frames - kept :] if reverse else x[:kept]
    missing = n_frames - kept
    padding = tf.stack([0, missing] if reverse else [missing, 0])
    rest = (
        tf.zeros([tf.rank(x) - 1, 2], tf.int32) if x.shape.rank is None else tf.zeros([x.shape.rank - 1, 2], tf.int32)
    )
    return tf.pad(part, tf.concat([tf.expand_dims(padding, 0), rest], axis=0), constant_values=fill)


def _doubling(a: Parts, b: Parts, reverse: bool) -> Parts:
    """Compute `_scan` in log2(time) passes: after pass k each frame has the sum over the last 2^k frames.

    Operations are those that converters to other formats know: the loop has arrays of one shape.
    """
    n_frames = tf.shape(b[0])[0]
    parts, one = len(a), [1.0, 0.0]

    def double(shift: tf.Tensor, *arrays: tf.Tensor) -> tuple[tf.Tensor, ...]:
        a, b = arrays[:parts], arrays[parts:]
        b = _sum(b, product_of_parts(a, tuple(_shifted(x, shift, 0.0, reverse) for x in b)))
        a = product_of_parts(a, tuple(_shifted(x, shift, fill, reverse) for x, fill in zip(a, one)))
        arrays = (*(x for x in a), *(x for x in b))
        for x, before in zip(arrays, shapes):
            x.set_shape(before)
        return (shift * 2, *arrays)

    shapes = [x.shape for x in (*a, *b)]
    loop = tf.while_loop(lambda shift, *_: shift < n_frames, double, (tf.constant(1), *a, *b), parallel_iterations=1)
    return tuple(loop[1 + parts :])


def _case(parts: int, size: Size) -> Case:
    frames = (size.frames, size.batch, size.width)
    inputs = draw(*[(0.5, frames)] * (2 * parts), *[(0.5, frames[1:])] * parts)
    lengths = ragged(size)

    def native(ops: Any, *arrays: tf.Tensor) -> list[tf.Tensor]:
        a, b, h0 = _three(arrays)
        h, last = native_scan(ops, a, b, h0, tf.constant(lengths))
        return [*h, *last]

    def plain(*arrays: tf.Tensor) -> list[tf.Tensor]:
        h, last = plain_form(recurrence_of_parts)(*_three(arrays), tf.constant(lengths))
        return [*h, *last]

    return Case(inputs, native, plain)


def _three(arrays: Parts) -> tuple[Parts, Parts, Parts]:
    """Return factors, terms and initial state, of a third of the arrays each."""
    parts = len(arrays) // 3
    return arrays[:parts], arrays[parts : 2 * parts], arrays[2 * parts :]


SCAN_TRIAL = Trial("real scan", "scan", __name__, "SCAN_TRIAL", partial(_case, 1), "units")
COMPLEX_SCAN_TRIAL = Trial("complex scan", "scan", __name__, "COMPLEX_SCAN_TRIAL", partial(_case, 2), "units")
