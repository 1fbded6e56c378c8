"""Gradients of first and second order of an op, to compare its forms."""

from returnn_tf.util.lazy_tf import tf


def derivatives(function, *arrays):
    """Return result, gradients, and gradients of the norm of the gradients."""
    inputs = [tf.convert_to_tensor(a) for a in arrays]
    with tf.GradientTape() as outer:
        outer.watch(inputs)
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            y = function(*inputs)
            loss = tf.reduce_sum(tf.sin(y))
        first = list(map(tf.convert_to_tensor, inner.gradient(loss, inputs)))
        norm = tf.add_n([tf.reduce_sum(g * g) for g in first])
    return [y, *first, *map(tf.convert_to_tensor, outer.gradient(norm, inputs))]
