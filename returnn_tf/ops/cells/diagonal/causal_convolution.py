"""A filter for each channel over the last frames, on ragged batches, with the frames before the first one as state."""

from __future__ import annotations

from typing import Any, Callable

from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


def causal_convolution(
    x: tf.Tensor, weights: tf.Tensor, before: tf.Tensor, lengths: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute ``y[t] = sum over k of weights[k] * x[t - width + 1 + k]`` for each channel.

    :param x: [time, batch, n], finite also in padding
    :param weights: [width, n], the last one for the frame itself
    :param before: frames before the first one, the oldest one first [batch, width - 1, n]
    :param lengths: int32 [batch]
    :return: y [time, batch, n]; the last ``width - 1`` frames of each sequence [batch, width - 1, n]
    """
    kept = weights.shape[0] - 1
    padded = tf.concat([tf.transpose(before, [1, 0, 2]), x], axis=0)
    rows = tf.expand_dims(lengths, 1) + tf.range(kept)  # frame t of x is at t + width - 1
    last = tf.gather_nd(
        padded, tf.stack([rows, tf.broadcast_to(tf.range(tf.shape(x)[1])[:, None], tf.shape(rows))], -1)
    )
    last.set_shape(before.shape)
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
