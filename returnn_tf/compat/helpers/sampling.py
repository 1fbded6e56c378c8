"""Logits of sampled classes, for the code of configs."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.util.lazy_tf import tf


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
