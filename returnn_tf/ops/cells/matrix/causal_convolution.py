"""A filter for each channel over the last frames, on ragged batches, with the frames before the first one as state."""

from __future__ import annotations

from typing import Any, Callable, Optional

from returnn_tf.ops.cells.matrix.recent_frames import behind_recent_frames
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


def causal_convolution(
    x: tf.Tensor, weights: tf.Tensor, recent: tf.Tensor, lengths: Optional[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute ``y[t] = sum over k of weights[k] * x[t - width + 1 + k]`` for each channel.

    :param x: [time, batch, n], finite also in padding
    :param weights: [width, n], the last one for the frame itself
    :param recent: state [batch, (width - 1) * n], the frames before the first one, the oldest one first
    :param lengths: int [batch]; None: all sequences have all frames
    :return: y [time, batch, n], the state at the end of each sequence
    """
    padded, last = behind_recent_frames(x, recent, weights.shape[0] - 1, lengths)
    y = _filtered(padded, weights)
    y.set_shape(x.shape)
    return y, last


def _filtered(padded: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Compute the convolution over ``padded`` [time + width - 1, batch, n]."""
    width = weights.shape[0]

    def shifts(array: tf.Tensor, n_frames: tf.Tensor) -> list[tf.Tensor]:
        return [array[k : k + n_frames] for k in range(width)]

    # The automatic gradient of slices pads each of them.
    @custom_gradient
    def run(padded: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        n_frames = tf.shape(padded)[0] - width + 1
        y = tf.add_n([part * weights[k] for k, part in enumerate(shifts(padded, n_frames))])

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            around = tf.pad(dy, [[width - 1, width - 1], [0, 0], [0, 0]])
            parts = shifts(around, n_frames + width - 1)
            d_padded = tf.add_n([part * weights[width - 1 - k] for k, part in enumerate(parts)])
            d_weights = [tf.reduce_sum(dy * part, axis=[0, 1]) for part in shifts(padded, n_frames)]
            return d_padded, tf.stack(d_weights)

        return y, gradient

    return run(padded, weights)
