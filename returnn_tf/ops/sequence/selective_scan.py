"""Selective state spaces over time: the recurrence of Mamba, by a native op or chunk by chunk."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Optional

from returnn_tf.native.dispatch import form, plain_form
from returnn_tf.native.scans.selective_scan import native_selective_scan, selective_scan_ops
from returnn_tf.native.trials.measured import pays
from returnn_tf.native.trials.trial import Case, Size, Trial, draw, ragged
from returnn_tf.ops.sequence.linear_recurrence import linear_recurrence
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf

#: Frames of which the plain form has all states in memory at once.
CHUNK = 16

Result = tuple["tf.Tensor", "tf.Tensor"]


def _native(
    ops: Any,
    x: tf.Tensor,
    delta: tf.Tensor,
    a: tf.Tensor,
    b: tf.Tensor,
    c: tf.Tensor,
    d: tf.Tensor,
    h0: tf.Tensor,
    lengths: Optional[tf.Tensor] = None,
) -> Result:
    ends = tf.fill([tf.shape(x)[1]], tf.shape(x)[0]) if lengths is None else tf.cast(lengths, tf.int32)
    return native_selective_scan(ops, x, delta, a, b, c, d, h0, ends)


def _ops_for(x: tf.Tensor, *_: Any) -> Any:
    ops = selective_scan_ops(x.dtype)
    return ops if ops and pays(SELECTIVE_SCAN_TRIAL, x.shape[-1], x.dtype) else None


@form(_native, where=_ops_for)
def selective_scan(
    x: tf.Tensor,
    delta: tf.Tensor,
    a: tf.Tensor,
    b: tf.Tensor,
    c: tf.Tensor,
    d: tf.Tensor,
    h0: tf.Tensor,
    lengths: Optional[tf.Tensor] = None,
) -> Result:
    """Compute ``h = exp(delta a) h + delta x b;  y = sum over the states of c h, plus d x`` for all frames.

    N states per channel (Gu & Dao 2023, arXiv 2312.00752). The gradient keeps a state per chunk, and recomputes the
    others.

    :param x: [time, batch, n]
    :param delta: step sizes [time, batch, n], at least 0
    :param a: [N, n], negative
    :param b: [time, batch, N]; likewise ``c``
    :param d: [n]
    :param h0: initial state [batch, N, n]
    :param lengths: int [batch], or None if all sequences fill the array
    :return: y [time, batch, n], 0 after the end of each sequence; the state of each sequence after its last frame
    """
    if lengths is not None:  # without a step a state is kept
        runs = tf.transpose(tf.sequence_mask(lengths, tf.shape(x)[0]))[:, :, None]
        x, delta, b, c = (tf.where(runs, array, tf.zeros([], array.dtype)) for array in (x, delta, b, c))
    n_frames = tf.shape(x)[0]
    chunked = [_chunks(array, n_frames) for array in (x, delta, b, c)]
    y, h_last = _by_chunks(*chunked, a, d, h0)
    joined = tf.reshape(y, tf.concat([[-1], tf.shape(x)[1:]], axis=0))[:n_frames]
    joined.set_shape(x.shape)
    return joined, h_last


def _chunks(x: tf.Tensor, n_frames: tf.Tensor) -> tf.Tensor:
    """Return [chunks, CHUNK, batch, n], with zeros at the end; at least one chunk, as arrays of none have no shape."""
    count = tf.maximum(1, (n_frames + CHUNK - 1) // CHUNK)
    padded = tf.pad(x, [[0, count * CHUNK - n_frames], [0, 0], [0, 0]])
    out = tf.reshape(padded, tf.concat([[count, CHUNK], tf.shape(x)[1:]], axis=0))
    out.set_shape([None, CHUNK, *x.shape[1:]])
    return out


def _chunk(
    x: tf.Tensor, delta: tf.Tensor, b: tf.Tensor, c: tf.Tensor, a: tf.Tensor, d: tf.Tensor, h: tf.Tensor
) -> Result:
    """Compute y of one chunk, and the state after it."""
    factors = tf.exp(delta[:, :, None, :] * a)
    terms = (delta * x)[:, :, None, :] * b[..., None]
    flat = tf.concat([tf.shape(factors)[:2], [-1]], axis=0)
    states, last = linear_recurrence(
        tf.reshape(factors, flat), tf.reshape(terms, flat), tf.reshape(h, [tf.shape(h)[0], -1])
    )
    y = tf.reduce_sum(tf.reshape(states, tf.shape(factors)) * c[..., None], axis=2) + d * x
    return y, tf.reshape(last, tf.shape(h))


def _by_chunks(*arrays: tf.Tensor) -> Result:
    """Run `_chunk` over all chunks; its gradient runs each again.

    :param arrays: x, delta, b, c by chunks; a, d, h0
    """

    @custom_gradient
    def run(*arrays: tf.Tensor) -> tuple[Result, Callable[..., Any]]:
        by_chunk, (a, d, h0) = arrays[:4], arrays[4:]
        count = tf.shape(arrays[0])[0]

        def forward(i: tf.Tensor, h: tf.Tensor, ys: Any, states: Any) -> tuple[Any, ...]:
            inputs = [*(x[i] for x in by_chunk), a, d, h]
            y, after = _chunk(*inputs)
            after.set_shape(h0.shape)
            return i + 1, after, ys.write(i, y), states.write(i, h)

        outputs = tf.TensorArray(h0.dtype, count, element_shape=arrays[0].shape[1:])
        kept = tf.TensorArray(h0.dtype, count, element_shape=h0.shape)
        _, h_last, outputs, kept = tf.while_loop(
            lambda i, *_: i < count, forward, (0, h0, outputs, kept), parallel_iterations=1
        )
        states = kept.stack()

        def gradient(dy: tf.Tensor, dh_last: tf.Tensor) -> list[tf.Tensor]:
            def backward(i: tf.Tensor, dh: tf.Tensor, da: tf.Tensor, dd: tf.Tensor, *grads: Any) -> tuple[Any, ...]:
                inputs = [*(x[i] for x in by_chunk), a, d, states[i]]
                with tf.GradientTape() as tape:
                    tape.watch(inputs)
                    results = _chunk(*inputs)
                *own, a_part, d_part, before = tape.gradient(results, inputs, [dy[i], dh])
                before.set_shape(h0.shape)
                written = [array.write(i, grad) for array, grad in zip(grads, own)]
                return (i - 1, before, da + a_part, dd + d_part, *written)

            grads = [tf.TensorArray(x.dtype, count, element_shape=x.shape[1:]) for x in by_chunk]
            start = (count - 1, dh_last, tf.zeros_like(a), tf.zeros_like(d), *grads)
            _, dh0, da, dd, *grads = tf.while_loop(lambda i, *_: i >= 0, backward, start, parallel_iterations=1)
            return [*(array.stack() for array in grads), da, dd, dh0]

        return (outputs.stack(), h_last), gradient

    y, h_last = run(*arrays)
    return y, h_last


#: States per channel in the trial, as in Mamba.
_STATES = 16


def _case(size: Size) -> Case:
    frames, n = (size.frames, size.batch), size.width
    shapes = [(*frames, n), (*frames, n), (_STATES, n), (*frames, _STATES), (*frames, _STATES), (n,)]
    inputs = draw(*((0.5, shape) for shape in [*shapes, (size.batch, _STATES, n)]))
    lengths = ragged(size)

    def of(form: Callable[..., Result], x: tf.Tensor, delta: tf.Tensor, a: tf.Tensor, *others: tf.Tensor) -> Result:
        return form(x, delta * delta, -a * a, *others, tf.constant(lengths))

    def native(ops: Any, *arrays: tf.Tensor) -> Result:
        return of(partial(native_selective_scan, ops), *arrays)

    return Case(inputs, native, partial(of, plain_form(selective_scan)))


SELECTIVE_SCAN_TRIAL = Trial(
    "selective scan", "selective_scan", __name__, "SELECTIVE_SCAN_TRIAL", _case, "channels", (64, 512)
)
