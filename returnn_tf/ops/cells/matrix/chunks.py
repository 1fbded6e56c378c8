"""Ragged sequences cut into chunks of equal length, and the state that goes from chunk to chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

from returnn_tf.ops.cells.time_axis import frame_mask, running_order
from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


@dataclass(frozen=True)
class Chunks:
    """A ragged batch in the order of time, cut into chunks in the order in which the frames run.

    :param n_frames: int scalar
    :param lengths: int [batch]; None: all sequences have all frames
    :param reverse: each sequence runs from its last to its first frame
    :param size: frames of a chunk; the last chunk is padded
    """

    n_frames: tf.Tensor
    lengths: Optional[tf.Tensor]
    reverse: bool
    size: int

    def split(self, x: tf.Tensor) -> tf.Tensor:
        """Cut ``x`` into chunks; what is not a frame of a sequence becomes 0, also NaN.

        :param x: [time, batch, heads, d]
        :return: [chunks, batch, heads, size, d], with at least one chunk
        """
        if self.lengths is not None:
            mask = frame_mask(self.lengths, self.n_frames)[:, :, None, None]
            x = tf.where(mask, x, tf.zeros([], x.dtype))
        x = running_order(x, self.lengths, self.reverse)
        n_chunks = self._n_chunks()
        x = tf.pad(x, [[0, n_chunks * self.size - self.n_frames], [0, 0], [0, 0], [0, 0]])
        shape = tf.shape(x)
        out = tf.reshape(x, tf.concat([[n_chunks, self.size], shape[1:]], axis=0))
        out.set_shape([None, self.size, *x.shape[1:]])
        return tf.transpose(out, [0, 2, 3, 1, 4])

    def join(self, x: tf.Tensor) -> tf.Tensor:
        """Undo `split`.

        :param x: [chunks, batch, heads, size, d], 0 in what is not a frame of a sequence
        :return: [time, batch, heads, d]
        """
        shape = tf.shape(x)
        out = tf.reshape(tf.transpose(x, [0, 3, 1, 2, 4]), [-1, shape[1], shape[2], shape[4]])[: self.n_frames]
        out.set_shape([None, x.shape[1], x.shape[2], x.shape[4]])
        return running_order(out, self.lengths, self.reverse)

    def _n_chunks(self) -> tf.Tensor:
        return tf.maximum(1, (self.n_frames + self.size - 1) // self.size)


def carried_states(decay: tf.Tensor, added: tf.Tensor, first: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Compute the states at the boundaries of chunks, ``state[i + 1] = decay[i] * state[i] + added[i]``.

    :param decay: [chunks, batch, heads, rows or 1, 1]
    :param added: [chunks, batch, heads, rows, columns]
    :param first: state before the first chunk [batch, heads, rows, columns]
    :return: states before each chunk [chunks, batch, heads, rows, columns], state after the last one
    """

    @custom_gradient
    def run(decay: tf.Tensor, added: tf.Tensor, first: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        before, last = _carry(decay, added, first, reverse=False)

        def gradient(d_before: tf.Tensor, d_last: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            d_after, d_first = _carry(decay, d_before, d_last, reverse=True)
            d_decay = tf.reduce_sum(d_after * before, axis=-1, keepdims=True)
            if decay.shape[-2] == 1 and before.shape[-2] != 1:
                d_decay = tf.reduce_sum(d_decay, axis=-2, keepdims=True)
            return d_decay, d_after, d_first

        return (before, last), gradient

    before, last = run(decay, added, first)
    return before, last


def _carry(factor: tf.Tensor, added: tf.Tensor, state: tf.Tensor, *, reverse: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Run ``state = factor[i] * state + added[i]`` over i; return the states before each step, and the last one."""
    n_steps = tf.shape(added)[0]
    states = tf.TensorArray(state.dtype, n_steps, element_shape=state.shape)

    def step(done: tf.Tensor, state: tf.Tensor, states: tf.TensorArray) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        i = n_steps - 1 - done if reverse else done
        new = factor[i] * state + added[i]
        new.set_shape(state.shape)
        return done + 1, new, states.write(i, state)

    _, last, states = tf.while_loop(lambda i, *_: i < n_steps, step, (0, state, states), parallel_iterations=1)
    stacked = states.stack()
    stacked.set_shape([None, *state.shape])
    return stacked, last
