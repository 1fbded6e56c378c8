"""Linear recurrence of matrices, from chunk to chunk."""

from __future__ import annotations

from typing import Callable

from returnn_tf.util.custom_gradient import custom_gradient
from returnn_tf.util.lazy_tf import tf


def matrix_recurrence(factor: tf.Tensor, term: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
    """Compute ``state[n+1] = factor[n] state[n] + term[n]``.

    Besides the results nothing is kept for the gradient, which runs in a loop of the same kind.

    :param factor: [steps, ..., d, d]
    :param term: [steps, ..., d, m]
    :param state: [..., d, m], the first one
    :return: [steps + 1, ..., d, m], all states
    """

    @custom_gradient
    def run(
        factor: tf.Tensor, term: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]]:
        states = _loop(factor, term, state)

        def gradient(d_states: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            # backwards in time: d[n] = factor[n]^T d[n+1] + d_states[n]
            backwards = tf.reverse(factor, [0])
            sums = tf.reverse(_loop(backwards, tf.reverse(d_states[:-1], [0]), d_states[-1], transpose=True), [0])
            d_term = sums[1:]
            return tf.matmul(d_term, states[:-1], transpose_b=True), d_term, sums[0]

        return states, gradient

    states = run(factor, term, state)
    states.set_shape(tf.TensorShape([None]).concatenate(term.shape[1:]))
    return states


def _loop(factor: tf.Tensor, term: tf.Tensor, state: tf.Tensor, transpose: bool = False) -> tf.Tensor:
    """Return all states [steps + 1, ...]; see `matrix_recurrence`."""
    steps = tf.shape(term)[0]
    factors = tf.TensorArray(factor.dtype, steps).unstack(factor)
    terms = tf.TensorArray(term.dtype, steps).unstack(term)
    states = tf.TensorArray(term.dtype, steps + 1, clear_after_read=False).write(0, state)

    def body(n: tf.Tensor, state: tf.Tensor, states: tf.TensorArray) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        state = tf.ensure_shape(tf.matmul(factors.read(n), state, transpose_a=transpose) + terms.read(n), state.shape)
        return n + 1, state, states.write(n + 1, state)

    *_, states = tf.while_loop(lambda n, *_: n < steps, body, (0, state, states), parallel_iterations=1)
    return states.stack()
