"""The running maximum that keeps exponential gates in range."""

from __future__ import annotations

from typing import Any, Callable, Optional

from returnn_tf.ops.cells.time_axis import frame_mask, running_order
from returnn_tf.ops.sequence.linear_recurrence import linear_recurrence
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf

#: In place of -inf, of which differences would be NaN.
_LOWEST = -1e30


def stabiliser(
    log_f: tf.Tensor, i: tf.Tensor, first: tf.Tensor, *, lengths: Optional[tf.Tensor], reverse: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Compute ``m_t = max(log_f_t + m_{t-1}, i_t)`` over all frames in parallel.

    :param log_f: [time, batch, heads]
    :param i: [time, batch, heads]
    :param first: m before the first frame [batch, heads]
    :param lengths: int [batch]; None: all sequences have all frames
    :param reverse: each sequence runs from its last to its first frame; arrays keep the order of time
    :return: m [time, batch, heads], m of the frame before each one, and m after the frame that ran last
    """
    if lengths is not None:
        mask = frame_mask(lengths, tf.shape(i)[0])[:, :, None]
        log_f = tf.where(mask, log_f, tf.zeros([], i.dtype))
        i = tf.where(mask, i, tf.constant(_LOWEST, i.dtype))
    log_f, i = (running_order(x, lengths, reverse) for x in (log_f, i))
    i = tf.concat([tf.maximum(log_f[:1] + first, i[:1]), i[1:]], axis=0)
    states = tf.concat([first[None], _running_maximum(log_f, i)], axis=0)
    m, before = (running_order(x, lengths, reverse) for x in (states[1:], states[:-1]))
    return m, before, states[-1]


def _running_maximum(added: tf.Tensor, least: tf.Tensor) -> tf.Tensor:
    """Compute ``m[t] = max(added[t] + m[t-1], least[t])`` from a state of -inf; all [time, batch, heads]."""

    @custom_gradient
    def run(added: tf.Tensor, least: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        m = _doubling(added, least)

        def gradient(dm: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # 1 where the maximum comes from the frame before.
            carried = tf.cast(added[1:] + m[:-1] >= least[1:], m.dtype)
            to_next = tf.concat([carried, tf.zeros_like(m[:1])], axis=0)[: tf.shape(m)[0]]
            total, _ = linear_recurrence(to_next, dm, tf.zeros_like(first), reverse=True)
            from_before = tf.concat([tf.zeros_like(m[:1]), carried], axis=0)[: tf.shape(m)[0]]
            return total * from_before, total * (1 - from_before)

        return m, gradient

    first = tf.zeros(tf.shape(least)[1:], least.dtype)
    m: tf.Tensor = run(added, least)
    m.set_shape(least.shape)
    return m


def _doubling(added: tf.Tensor, least: tf.Tensor) -> tf.Tensor:
    """Compute `_running_maximum` over 1, 2, 4, ... frames up to each one."""
    n_frames = tf.shape(least)[0]

    def shifted(x: tf.Tensor, shift: tf.Tensor, fill: float) -> tf.Tensor:
        return tf.pad(x[: n_frames - shift], [[shift, 0], [0, 0], [0, 0]], constant_values=fill)

    def body(shift: tf.Tensor, total: tf.Tensor, m: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        new = tf.maximum(total + shifted(m, shift, _LOWEST), m)
        total = total + shifted(total, shift, 0.0)
        return 2 * shift, tf.ensure_shape(total, added.shape), tf.ensure_shape(new, least.shape)

    return tf.while_loop(lambda shift, *_: shift < n_frames, body, (1, added, least))[2]
