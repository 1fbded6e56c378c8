"""Frame-wise cross entropy whose gradients are immune to NaN and infinity in padded frames."""

from __future__ import annotations

import math
from typing import Any

from returnn_tf.ops.frames.shape import size_of
from returnn_tf.util.custom_gradient import custom_gradient, equivalent_gradient
from returnn_tf.util.lazy_tf import tf


def sparse_softmax_cross_entropy(logits: Any, labels: Any) -> Any:
    """Compute ``-log softmax(logits)[label]`` per frame in one op.

    Where the gradient of a frame is 0 (its loss was masked), no NaN or infinity of its logits gets into the gradient.

    :param logits: [..., classes]
    :param labels: int [...], each within the classes
    :return: [...]
    """
    classes = size_of(logits, -1)
    outer = tf.shape(labels)
    labels = tf.reshape(tf.cast(labels, tf.int32), [-1])

    @equivalent_gradient
    def run(x: Any) -> Any:
        flat = tf.reshape(x, [-1, classes])
        loss, backprop = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=flat, labels=labels)
        return tf.reshape(loss, outer), lambda grad: _frame_gradient(backprop, grad, x)

    return run(logits)


def soft_cross_entropy(logits: Any, targets: Any) -> Any:
    """Compute ``-sum_k target[k] log softmax(logits)[k]`` per frame for constant targets.

    The gradient is ``softmax(logits) - targets``, which is the exact one if the targets sum to 1. Padded frames: as in
    `sparse_softmax_cross_entropy`.

    :param logits: [..., classes]
    :param targets: [..., classes]; no gradient flows into them
    :return: [...]
    """
    classes = size_of(logits, -1)
    targets = tf.stop_gradient(tf.reshape(targets, [-1, classes]))

    @equivalent_gradient
    def run(x: Any) -> Any:
        flat = tf.reshape(x, [-1, classes])
        loss, backprop = tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=flat, labels=targets)
        return tf.reshape(loss, tf.shape(x)[:-1]), lambda grad: _frame_gradient(backprop, grad, x)

    return run(logits)


def focal_cross_entropy(logits: Any, labels: Any, targets: Any, entropy: float, factor: float) -> Any:
    """Compute ``(c - entropy) * (1 - softmax(logits)[label]) ** factor`` per frame (Lin et al. 2017) from one softmax.

    Padded frames: as in `sparse_softmax_cross_entropy`.

    :param logits: [..., classes]
    :param labels: int [...], each within the classes
    :param targets: [..., classes] for `soft_cross_entropy` as c, or None: then c is the cross entropy with the labels
    :return: [...]
    """
    classes = size_of(logits, -1)
    outer = tf.shape(labels)
    labels = tf.reshape(tf.cast(labels, tf.int32), [-1])
    if targets is not None:
        targets = tf.stop_gradient(tf.reshape(targets, [-1, classes]))

    @equivalent_gradient
    def run(x: Any) -> Any:
        flat = tf.reshape(x, [-1, classes])
        if targets is None:
            loss, backprop = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=flat, labels=labels)
            missed = -tf.gather(backprop, labels, batch_dims=1)
        else:
            loss, backprop = tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=flat, labels=targets)
            missed = 1.0 - tf.gather(backprop + targets, labels, batch_dims=1)
        missed = tf.maximum(missed, tf.cast(1e-12, missed.dtype))
        weight = missed**factor
        value = (loss - entropy) * weight
        # d weight / d x = slope * (softmax - one-hot), and softmax = backprop + targets.
        slope = factor * (loss - entropy) * weight / missed * (1.0 - missed)

        def gradient(grad: Any) -> Any:
            grad = tf.reshape(grad, [-1])
            scale = tf.math.multiply_no_nan(weight + slope, grad)
            result = tf.math.multiply_no_nan(backprop, scale[:, None])
            if targets is not None:
                away = targets - tf.one_hot(labels, classes, dtype=targets.dtype)
                result += tf.math.multiply_no_nan(slope, grad)[:, None] * away
            return tf.reshape(result, tf.shape(x))

        return tf.reshape(value, outer), gradient

    return run(logits)


def _frame_gradient(backprop: Any, grad: Any, x: Any) -> Any:
    grad = tf.reshape(grad, [-1, 1])
    return tf.reshape(tf.math.multiply_no_nan(backprop, grad), tf.shape(x))


def smoothed_targets(labels: Any, classes: int, smoothing: float, dtype: Any) -> Any:
    """Return ``1 - smoothing`` for the label, the rest spread evenly over all other classes (Szegedy et al. 2016).

    :param labels: int [...]
    :return: [..., classes]
    """
    return tf.one_hot(labels, classes, on_value=1.0 - smoothing, off_value=_other(classes, smoothing), dtype=dtype)


def gaussian_targets(labels: Any, classes: int, smoothing: float, dtype: Any) -> Any:
    """Return the unnormalised density of a normal distribution around the label.

    Its standard deviation is ``1 - smoothing``.

    :param labels: int [...]
    :return: [..., classes]
    """
    stddev = 1.0 - smoothing
    distance = (tf.range(classes, dtype=dtype) - tf.cast(labels, dtype)[..., None]) / stddev
    return tf.exp(-0.5 * tf.square(distance)) / (stddev * math.sqrt(2.0 * math.pi))


def smoothing_entropy(classes: int, smoothing: float) -> float:
    """Return the entropy of `smoothed_targets`, the lower bound of the cross entropy with them."""
    other = _other(classes, smoothing)
    return -((1.0 - smoothing) * math.log(1.0 - smoothing) + (classes - 1) * other * math.log(other + 1e-20))


def _other(classes: int, smoothing: float) -> float:
    return smoothing / max(classes - 1, 1)


def identity_gradient(x: Any, value: Any) -> Any:
    """Return the value with the gradient of ``x``."""
    return with_gradient(value, x, lambda grad: grad)


def with_gradient(value: Any, x: Any, gradient: Any) -> Any:
    """Return the value with a custom gradient.

    :param value: any tensor
    :param x: tensor that receives the gradient
    :param gradient: function: gradient of the value -> gradient of x
    """
    value = tf.stop_gradient(value)

    @custom_gradient
    def run(_: Any) -> Any:
        return tf.identity(value), gradient

    return run(x)


def upper_bound(x: Any, bound: float) -> Any:
    """Compute ``min(x, bound)`` with the gradient of ``x``."""
    return identity_gradient(x, tf.minimum(x, tf.cast(bound, x.dtype)))
