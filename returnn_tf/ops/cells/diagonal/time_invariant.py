"""Diagonal state spaces with the same coefficients in all frames, chunk by chunk as products of matrices."""

from __future__ import annotations

from typing import Optional

import numpy as np

from returnn_tf.ops.cells.base import State
from returnn_tf.ops.sequence.linear_recurrence import Parts, product_of_parts, recurrence_of_parts
from returnn_tf.util.lazy_tf import tf

#: CellFrames of a chunk, a power of 2: states are in memory only between chunks.
CHUNK = 32


def time_invariant(
    a: Parts, c: Parts, x: tf.Tensor, state: State, lengths: Optional[tf.Tensor]
) -> tuple[tf.Tensor, State]:
    """Compute ``h' = a h + x;  y = Re(sum over the states of c h')`` for each channel, over all frames.

    Complex numbers are pairs of a real and an imaginary part.

    Within a chunk, y is the sum of a product of a Toeplitz matrix with x, and of one with the state before the chunk.

    :param a: [m, n], m complex states for each of the n channels
    :param c: [m, n]
    :param x: [time, batch, n], 0 in padding
    :param state: parts of the initial state [batch, m * n]
    :param lengths: int [batch]; None: all sequences have all frames
    :return: y [time, batch, n]; the parts of the state of each sequence after its last frame [batch, m * n]
    """
    n_frames, batch, n = tf.shape(x)[0], tf.shape(x)[1], x.shape[2]
    m = a[0].shape[0]
    powers, over_chunk = _powers(a)
    count = (n_frames + CHUNK - 1) // CHUNK
    padded = tf.pad(x, [[0, count * CHUNK - n_frames], [0, 0], [0, 0]])
    chunks = tf.reshape(padded, [count, CHUNK, batch, n])
    # [n, CHUNK, count * batch]: one product for each channel
    inputs = tf.reshape(tf.transpose(chunks, [3, 1, 0, 2]), [n, CHUNK, count * batch])
    # What a chunk adds to the state: its last frame with power 0, its first one with CHUNK - 1.
    add = tf.concat([tf.transpose(tf.reverse(part, [0]), [2, 1, 0]) for part in powers], axis=1)  # [n, 2 m, CHUNK]

    def added(inputs: tf.Tensor, n_chunks: tf.Tensor) -> Parts:
        """Return the parts [n_chunks, batch, m * n]."""
        parts = tf.reshape(tf.matmul(add, inputs), [n, 2, m, n_chunks, batch])
        re, im = tf.unstack(tf.reshape(tf.transpose(parts, [1, 3, 4, 2, 0]), [2, n_chunks, batch, m * n]), num=2)
        return re, im

    factors = tuple(tf.reshape(part, [m * n]) for part in over_chunk)
    after, _ = recurrence_of_parts(factors, added(inputs, count), state)
    states = [tf.concat([first[None], part], axis=0) for first, part in zip(state, after)]
    before = tf.stack([tf.reshape(part[:-1], [count, batch, m, n]) for part in states])  # [2, count, batch, m, n]
    before = tf.reshape(tf.transpose(before, [4, 0, 3, 1, 2]), [n, 2 * m, count * batch])
    y = tf.matmul(
        tf.concat([_toeplitz(c, powers), _reading(c, product_of_parts(powers, a))], axis=2),
        tf.concat([inputs, before], axis=1),
    )
    y = tf.reshape(tf.transpose(tf.reshape(y, [n, CHUNK, count, batch]), [2, 1, 3, 0]), [-1, batch, n])[:n_frames]
    y.set_shape(x.shape)
    ends = tf.fill([batch], n_frames) if lengths is None else tf.cast(lengths, tf.int32)
    # The frames of the chunk in which a sequence ends, moved to the end of the chunk.
    frames = ends[None, :] - CHUNK + tf.range(CHUNK)[:, None]
    sequence = tf.broadcast_to(tf.range(batch), tf.shape(frames))
    ended = tf.gather_nd(
        tf.concat([x, tf.zeros([1, batch, n], x.dtype)], 0), tf.stack([tf.maximum(frames, 0), sequence], -1)
    )
    inside = frames >= ends // CHUNK * CHUNK
    ended = tf.where(inside[:, :, None], ended, tf.zeros([], x.dtype))
    more = added(tf.transpose(ended, [2, 0, 1]), tf.constant(1))
    started = [tf.gather_nd(part, tf.stack([ends // CHUNK, tf.range(batch)], -1)) for part in states]
    re, im = (tf.reshape(tf.gather(part, ends % CHUNK), [batch, m * n]) for part in powers)
    last = (re * started[0] - im * started[1] + more[0][0], re * started[1] + im * started[0] + more[1][0])
    return y, last


def _powers(a: Parts) -> tuple[Parts, Parts]:
    """Return a^0 ... a^(CHUNK - 1) [CHUNK, m, n], and a^CHUNK [m, n]; CHUNK is a power of 2."""
    powers, factor = (tf.ones_like(a[0])[None], tf.zeros_like(a[1])[None]), a
    while powers[0].shape[0] < CHUNK:
        more = product_of_parts(powers, factor)
        powers = tf.concat([powers[0], more[0]], axis=0), tf.concat([powers[1], more[1]], axis=0)
        factor = product_of_parts(factor, factor)
    return powers, factor


def _toeplitz(c: Parts, powers: Parts) -> tf.Tensor:
    """Return the weight of frame j of a chunk in y of frame i [n, i, j]: Re(sum over the states of c a^(i - j))."""
    kernel = tf.reduce_sum(c[0] * powers[0] - c[1] * powers[1], axis=1)  # [CHUNK, n]
    # A product with zeros and ones: the gradient of a gather would be a slow scatter.
    distance = np.arange(CHUNK)[:, None] - np.arange(CHUNK)[None, :]
    places = tf.constant(np.arange(CHUNK)[:, None] == distance.ravel(), kernel.dtype)
    return tf.reshape(tf.matmul(kernel, places, transpose_a=True), [-1, CHUNK, CHUNK])


def _reading(c: Parts, powers: Parts) -> tf.Tensor:
    """Return the weights of the state before a chunk in y of frame i [n, i, 2 m]: Re(c a^(i + 1) h).

    :param powers: a^1 ... a^CHUNK
    """
    re, im = product_of_parts(c, powers)
    return tf.concat([tf.transpose(part, [2, 0, 1]) for part in (re, -im)], axis=2)
