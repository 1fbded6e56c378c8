"""Arrays of heads: the split of a vector, one frame of their matrix-valued states, the norm of their outputs."""

from __future__ import annotations

from typing import Optional

from returnn_tf.util.lazy_tf import tf

#: Added to the variance or the mean square.
_EPSILON = 1e-5


def split_heads(x: tf.Tensor, heads: int) -> tf.Tensor:
    """Return [..., heads, d] of [..., heads * d]."""
    d = x.shape[-1] // heads
    out = tf.reshape(x, tf.concat([tf.shape(x)[:-1], [heads, d]], axis=0))
    out.set_shape([*x.shape[:-1], heads, d])
    return out


def join_heads(x: tf.Tensor, axes: int = 2) -> tf.Tensor:
    """Flatten the last axes, which are static, such as [..., heads, d] to [..., heads * d]."""
    size = 1
    for dim in x.shape[-axes:]:
        size *= dim
    out = tf.reshape(x, tf.concat([tf.shape(x)[:-axes], [size]], axis=0))
    out.set_shape([*x.shape[:-axes], size])
    return out


def one_frame(
    q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, log_decay: tf.Tensor, state: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute one frame of `chunkwise`, in constant memory.

    :param q: [batch, heads, keys]
    :param k: [batch, heads, keys]
    :param v: [batch, heads, values]
    :param log_decay: [batch, heads, keys or 1]
    :param state: [batch, heads, keys, values]
    :return: o [batch, heads, values], new state
    """
    state = tf.exp(log_decay)[..., None] * state + k[..., None] * v[..., None, :]
    return tf.squeeze(tf.matmul(q[..., None, :], state), axis=-2), state


def normed(x: tf.Tensor, scale: tf.Tensor, offset: Optional[tf.Tensor] = None) -> tf.Tensor:
    """Normalise the last axis by its root mean square, or with an offset by mean and variance.

    :param x: [..., d]
    :param scale: [d]; and ``offset``
    """
    if offset is not None:
        x -= tf.reduce_mean(x, axis=-1, keepdims=True)
    x *= tf.math.rsqrt(tf.reduce_mean(tf.square(x), axis=-1, keepdims=True) + _EPSILON) * scale
    return x if offset is None else x + offset
