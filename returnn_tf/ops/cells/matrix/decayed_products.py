"""Products of all pairs of frames in a chunk, weighted by the decay of each channel between the two frames."""

from __future__ import annotations

from dataclasses import dataclass

from returnn_tf.util.lazy_tf import tf

_SMALL_BLOCK = 2  # up to this size, sums of products take less time than matrix products of that shape


@dataclass
class ChunkDecays:
    """Logarithms of decays within chunks, each <= 0 if those of the frames are.

    :param before: [n, chunk, d] sum over the frames of the chunk before frame t
    :param after: [n, chunk, d] sum over the frames of the chunk after frame t
    :param total: [n, d] sum over the chunk
    """

    before: tf.Tensor
    after: tf.Tensor
    total: tf.Tensor


def decayed_products(x: tf.Tensor, y: tf.Tensor, log_decay: tf.Tensor) -> tuple[tf.Tensor, ChunkDecays]:
    """Compute ``A[t, s] = sum_i x[t, i] y[s, i] exp(sum_{s < j < t} log_decay[j, i])`` for s < t, else 0.

    Blocks of frames are joined to blocks of twice the size. Between a frame of the second and one of the first half the
    decay is the product of two factors, from either frame to the boundary, and neither exceeds 1. So no decay is
    divided out, and none overflows or loses digits, however strong it is.

    :param x: [n, p, chunk, d], where chunk is a power of two
    :param y: [n, q, chunk, d]
    :param log_decay: [n, chunk, d], <= 0
    :return: [n, p, chunk, q, chunk], and the sums of the decays
    """
    p, q, (chunk, d) = x.shape[1], y.shape[1], log_decay.shape[1:]
    assert chunk & (chunk - 1) == 0, chunk
    products = tf.zeros([tf.shape(x)[0], chunk, p, 1, q, 1], x.dtype)  # of all pairs in each block
    before, after, total = tf.zeros_like(log_decay), tf.zeros_like(log_decay), log_decay
    size = 1
    while size < chunk:
        blocks = chunk // (2 * size)  # pairs of blocks, to be joined
        before_1, before_2 = _halves(before, [blocks, size, d])
        after_1, after_2 = _halves(after, [blocks, size, d])
        total_1, total_2 = _halves(total, [blocks, 1, d])
        later = _blocks(x, blocks, 1) * tf.exp(before_2)[:, :, tf.newaxis]
        earlier = _blocks(y, blocks, 0) * tf.exp(after_1)[:, :, tf.newaxis]
        first, second = _halves(products, [blocks, p, size, q, size])
        across = _products(later, earlier)
        products = tf.concat([tf.concat([first, tf.zeros_like(first)], -1), tf.concat([across, second], -1)], 3)
        before = tf.concat([before_1, before_2 + total_1], 2)
        after = tf.concat([after_1 + total_2, after_2], 2)
        total = total_1 + total_2
        size *= 2
    before, after = (tf.reshape(sums, [-1, chunk, d]) for sums in (before, after))
    return tf.reshape(products, [-1, p, chunk, q, chunk]), ChunkDecays(before, after, tf.reshape(total, [-1, d]))


def _halves(array: tf.Tensor, shape: list[int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Split the blocks of an array into the first and the second one of each pair: both [n, *shape]."""
    first, second = tf.unstack(tf.reshape(array, [-1, shape[0], 2, *shape[1:]]), axis=2)
    return first, second


def _blocks(array: tf.Tensor, blocks: int, half: int) -> tf.Tensor:
    """Return the first or the second block of each pair of [n, p, chunk, d]: [n, blocks, p, size, d]."""
    p, chunk, d = array.shape[1:]
    array = tf.reshape(array, [-1, p, blocks, 2, chunk // (2 * blocks), d])[:, :, :, half]
    return tf.transpose(array, [0, 2, 1, 3, 4])


def _products(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Return [n, blocks, p, size, q, size] of [n, blocks, p, size, d] and [n, blocks, q, size, d]."""
    blocks, p, size, d = x.shape[1:]
    q = y.shape[2]
    if size <= _SMALL_BLOCK:
        return tf.reduce_sum(x[:, :, :, :, tf.newaxis, tf.newaxis] * y[:, :, tf.newaxis, tf.newaxis], -1)
    x, y = tf.reshape(x, [-1, blocks, p * size, d]), tf.reshape(y, [-1, blocks, q * size, d])
    return tf.reshape(tf.matmul(x, y, transpose_b=True), [-1, blocks, p, size, q, size])
