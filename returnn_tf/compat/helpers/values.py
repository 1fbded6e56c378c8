"""Elementwise functions, products, conditions, sampled logits and gradients, for the code of configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np

from returnn_tf.compat.helpers.shapes import get_shape
from returnn_tf.ops.activations import clipped_exp
from returnn_tf.ops.activations import safe_log as safe_log
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf

safe_exp = clipped_exp


def log_sigmoid(x: Any) -> Any:
    """Return ``log(1 / (1 + exp(-x)))``."""
    return tf.math.log_sigmoid(x)


def softmax_cross_entropy_over_size(logits: Any, labels: Any) -> Any:
    """Return the cross entropy of distributions over the frames of a sequence, which are the classes.

    :param logits: view of a layer; the classes are the last of its axes with lengths
    :param labels: view of probabilities with the same axes
    :return: the axes of ``logits`` without that of the classes
    """
    data = logits.template
    axis = max(i for i, dim in enumerate(data.dims) if dim.is_dynamic() and i != data.batch_axis)
    targets = to_layout(labels.placeholder, labels.template, data, match_axes(labels.template, data))
    mask = logits.get_sequence_mask_broadcast(axis)
    x = tf.where(mask, logits.placeholder, logits.placeholder.dtype.min)
    log_probs = x - tf.reduce_logsumexp(x, axis=axis, keepdims=True)
    return -tf.reduce_sum(tf.where(mask, targets * log_probs, 0.0), axis=axis)


def where_bc(condition: Any, x: Any, y: Any, name: Optional[str] = None) -> Any:
    """Return ``tf.where`` with all three arguments broadcast to a common shape."""
    return tf.where(condition, x, y, name=name)


def dropout(
    x: Any,
    keep_prob: Any,
    noise_shape: Optional[Sequence[Any]] = None,
    seed: Optional[int] = None,
    name: Optional[str] = None,
    apply_correction_factor: bool = True,
) -> Any:
    """Keep entries with a probability and scale them by its inverse; set the others to zero.

    :param noise_shape: 1 where an axis shares the mask
    :param apply_correction_factor: False: do not scale
    """
    x = tf.convert_to_tensor(x)
    if isinstance(keep_prob, (int, float)) and keep_prob >= 1:
        return x
    if noise_shape is not None:
        noise_shape = [size if given is None else given for given, size in zip(noise_shape, get_shape(x))]
    y = tf.nn.dropout(x, rate=1.0 - keep_prob, noise_shape=noise_shape, seed=seed, name=name)
    return y if apply_correction_factor else y * tf.cast(keep_prob, x.dtype)


def dot(a: Any, b: Any, transpose_b: bool = False) -> Any:
    """Return the product over the last axis of ``a`` and the first of ``b``, or the last if transposed."""
    return tf.tensordot(a, b, [[-1], [-1 if transpose_b else 0]])


def to_int32_64(x: Any) -> Any:
    """Return the tensor unchanged if it is int32 or int64, else cast to int32."""
    return x if x.dtype in (tf.int32, tf.int64) else tf.cast(x, tf.int32)


def matrix_triangular(shape: Sequence[Any], dtype: Any = "float32", lower: bool = False, upper: bool = False) -> Any:
    """Return ones on the diagonal and below (lower) or above (upper) it, else zeros.

    :param shape: [..., rows, columns]
    """
    if lower == upper:
        raise TypeError("matrix_triangular: give either lower=True or upper=True")
    return tf.linalg.band_part(tf.ones(shape, dtype), -1 if lower else 0, 0 if lower else -1)


def get_shared_vocab(vocab_strings: Sequence[str]) -> Any:
    """Return the labels as a string tensor [labels]."""
    return tf.constant(np.asarray(vocab_strings, dtype=object), dtype=tf.string)


def optional_add(*args: Any) -> Any:
    """Return the sum of the arguments that are not None, or None."""
    given = [x for x in args if x is not None]
    return sum(given[1:], given[0]) if given else None


def optional_mul(*args: Any) -> Any:
    """Return the product of the arguments that are not None, or None."""
    result = None
    for x in args:
        if x is not None:
            result = x if result is None else result * x
    return result


def cond(
    pred: Any,
    true_fn: Optional[Callable[[], Any]] = None,
    false_fn: Optional[Callable[[], Any]] = None,
    name: Optional[str] = None,
    *,
    fn1: Optional[Callable[[], Any]] = None,
    fn2: Optional[Callable[[], Any]] = None,
) -> Any:
    """Return the value of one of two functions; if the condition is a constant, only that one is called.

    :param fn1: old name of true_fn
    :param fn2: old name of false_fn
    """
    true_fn, false_fn = true_fn or fn1, false_fn or fn2
    if true_fn is None or false_fn is None:
        raise TypeError("cond: give two functions, true_fn and false_fn")
    known = tf.get_static_value(tf.convert_to_tensor(pred))
    if known is not None:
        return true_fn() if known else false_fn()
    return tf.cond(pred, true_fn, false_fn, name=name)


def py_print(
    pass_through_value: Any,
    print_args: Sequence[Any] = (),
    message: Optional[str] = None,
    summarize: Optional[int] = None,
    first_n: Optional[int] = None,
    name: Optional[str] = None,
) -> Any:
    """Return a tensor; whenever it is computed, print others to the standard error.

    :param summarize: entries shown of each end of an axis
    :param first_n: not supported; has to be None
    """
    if first_n is not None:
        raise TypeError("py_print: first_n is not supported, the values are printed in each step")
    shown = ([message] if message is not None else []) + list(print_args)
    with tf.control_dependencies([tf.print(*shown, summarize=3 if summarize is None else summarize)]):
        return tf.identity(pass_through_value, name=name)


def add_scaled_noise_to_gradients(
    grads_and_vars: Sequence[tuple[Any, Any]], gradient_noise_scale: float, sparse_grads: bool = False
) -> list[tuple[Any, Any]]:
    """Add Gaussian noise to gradients.

    :param sparse_grads: whether to do so for those that are ``tf.IndexedSlices``, too
    """

    def noisy(grad: Any) -> Any:
        if grad is None or (isinstance(grad, tf.IndexedSlices) and not sparse_grads):
            return grad
        values = grad.values if isinstance(grad, tf.IndexedSlices) else grad
        values = values + gradient_noise_scale * tf.random.truncated_normal(tf.shape(values), dtype=values.dtype)
        if isinstance(grad, tf.IndexedSlices):
            return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
        return values

    return [(noisy(grad), var) for grad, var in grads_and_vars]


def compute_sampled_logits(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    subtract_log_q: bool = True,
    remove_accidental_hits: bool = False,
    seed: Optional[int] = None,
    **others: Any,
) -> tuple[Any, Any]:
    """Return the logits of the true classes and of sampled ones, and their targets (Jean et al. 2014).

    :param weights: [classes, dim]
    :param biases: [classes]
    :param labels: int64 [batch, num_true]
    :param inputs: [batch, dim]
    :param sampled_values: from a candidate sampler; default: log-uniform
    :param subtract_log_q: subtract the log of the expected counts from the logits
    :param remove_accidental_hits: exclude samples that are true classes
    :return: logits and targets, both [batch, num_true + num_sampled]; the targets of the true classes are 1 / num_true
    """
    unknown = sorted(set(others) - {"partition_strategy", "name"})
    if unknown:
        raise TypeError("compute_sampled_logits: the arguments %s are not supported" % ", ".join(unknown))
    labels = tf.cast(labels, tf.int64)
    if sampled_values is None:
        sampled_values = tf.random.log_uniform_candidate_sampler(
            labels, num_true, num_sampled, unique=True, range_max=num_classes, seed=seed
        )
    sampled, true_count, sampled_count = (tf.stop_gradient(x) for x in sampled_values)
    true = tf.einsum("bnd,bd->bn", tf.gather(weights, labels), inputs) + tf.gather(biases, labels)
    rest = tf.matmul(inputs, tf.gather(weights, sampled), transpose_b=True) + tf.gather(biases, sampled)
    if remove_accidental_hits:
        hit = tf.reduce_any(tf.equal(labels[:, :, None], sampled[None, None]), axis=1)
        rest = tf.where(hit, tf.cast(rest.dtype.min, rest.dtype), rest)
    if subtract_log_q:
        true -= tf.math.log(tf.cast(true_count, true.dtype))
        rest -= tf.math.log(tf.cast(sampled_count, rest.dtype))
    targets = tf.concat([tf.ones_like(true) / num_true, tf.zeros_like(rest)], axis=1)
    return tf.concat([true, rest], axis=1), targets
