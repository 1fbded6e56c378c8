"""Sampled softmax and noise-contrastive estimation for large numbers of classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from returnn_tf.util.lazy_tf import tf


def log_uniform_sampler(classes: int, **_: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Sample from ``p(k) = log((k + 2) / (k + 1)) / log(classes + 1)``.

    Fits labels sorted by descending frequency (Zipf).
    """
    total = math.log(classes + 1)

    def draw(uniform: Any) -> Any:
        return tf.clip_by_value(tf.cast(tf.exp(uniform * total), tf.int32) - 1, 0, classes - 1)

    def log_prob(labels: Any) -> Any:
        return tf.math.log(tf.math.log1p(1.0 / (tf.cast(labels, tf.float32) + 1.0)) / total)

    return draw, log_prob


def uniform_sampler(classes: int, **_: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Sample all classes with equal probability."""
    return (
        lambda uniform: tf.minimum(tf.cast(uniform * classes, tf.int32), classes - 1),
        lambda labels: tf.fill(tf.shape(labels), -math.log(classes)),
    )


def fixed_unigram_sampler(
    classes: int, unigrams: Sequence[float] = (), distortion: float = 1.0, **_: Any
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Sample with ``p(k)`` proportional to ``unigrams[k] ** distortion``."""
    weights = np.asarray(unigrams, "float64") ** distortion
    if weights.shape != (classes,) or (weights < 0).any() or not weights.sum() > 0:
        raise ValueError("sampler fixed_unigram: sampler_args['unigrams'] must hold %d counts" % classes)
    probs = weights / weights.sum()
    bounds, logs = np.cumsum(probs).astype("float32"), np.log(np.maximum(probs, 1e-30)).astype("float32")
    return (
        lambda uniform: tf.minimum(tf.searchsorted(tf.constant(bounds), uniform, side="right"), classes - 1),
        lambda labels: tf.gather(logs, labels),
    )


#: By name: function (classes, **sampler_args) -> (uniform numbers -> classes, classes -> log probability).
SAMPLERS: dict[str, Any] = {
    "log_uniform": log_uniform_sampler,
    "uniform": uniform_sampler,
    "fixed_unigram": fixed_unigram_sampler,
}

#: Draws classes as often as they were labels so far, which TensorFlow counts. The counts are not in checkpoints.
LEARNED = "learned_unigram"
SAMPLER_NAMES: tuple[str, ...] = (*SAMPLERS, LEARNED)

#: (labels [frames], number of classes to draw, seed) -> drawn classes, log probabilities of the labels and of the drawn
Draws = Callable[[Any, int, Any], tuple[Any, Any, Any]]


def draws_by(name: str, classes: int, **args: Any) -> Draws:
    """Return the function that draws classes with replacement.

    :param args: ``sampler_args``
    """
    if name == LEARNED:
        return _learned_draws(classes)
    draw, log_prob = SAMPLERS[name](classes, **args)

    def draws(labels: Any, count: int, seed: Any) -> tuple[Any, Any, Any]:
        drawn = draw(tf.random.stateless_uniform([count], seed))
        return drawn, log_prob(labels), log_prob(drawn)

    return draws


def _learned_draws(classes: int) -> Draws:
    def draws(labels: Any, count: int, seed: Any) -> tuple[Any, Any, Any]:
        drawn, of_labels, of_drawn = tf.raw_ops.LearnedUnigramCandidateSampler(
            true_classes=tf.cast(labels, tf.int64)[:, None],
            num_true=1,
            num_sampled=count,
            unique=False,
            range_max=classes,
            seed=1,
            seed2=1,
        )
        logs = [tf.math.log(expected / count) for expected in (of_labels[:, 0], of_drawn)]
        return tf.cast(drawn, tf.int32), logs[0], logs[1]

    return draws


def sampled_logits(
    x: Any,
    weights: Any,
    bias: Any,
    labels: Any,
    seed: Any,
    num_sampled: int,
    sampler: Any,
    remove_accidental_hits: bool,
) -> Any:
    """Score the label and classes drawn with replacement, each minus the log of its expected number of draws.

    :param x: [frames, features]
    :param weights: [classes, features]
    :param bias: [classes]
    :param labels: int32 [frames]
    :param seed: for ``tf.random.stateless_*``
    :param sampler: see `draws_by`
    :param remove_accidental_hits: whether drawn classes which are the label get the score -1e30
    :return: [frames, 1 + num_sampled], the label first
    """
    drawn, log_prob_of_labels, log_prob_of_drawn = sampler(labels, num_sampled, seed)
    log_count = math.log(num_sampled)
    true = tf.reduce_sum(x * tf.gather(weights, labels), axis=1) + tf.gather(bias, labels)
    true -= tf.cast(log_prob_of_labels, x.dtype) + log_count
    others = tf.matmul(x, tf.gather(weights, drawn), transpose_b=True) + tf.gather(bias, drawn)
    others -= tf.cast(log_prob_of_drawn, x.dtype) + log_count
    if remove_accidental_hits:
        others = tf.where(tf.equal(labels[:, None], drawn[None]), tf.cast(-1e30, others.dtype), others)
    return tf.concat([true[:, None], others], axis=1)


def sampled_softmax_loss(logits: Any) -> Any:
    """Compute the cross entropy of the first column of `sampled_logits` (Jean et al. 2015), [frames]."""
    return tf.reduce_logsumexp(logits, axis=1) - logits[:, 0]


def nce_loss(logits: Any) -> Any:
    """Compute the loss of separating labels from noise in `sampled_logits` (Gutmann & Hyvarinen 2010), [frames]."""
    targets = tf.one_hot(tf.zeros([tf.shape(logits)[0]], tf.int32), tf.shape(logits)[1], dtype=logits.dtype)
    return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits), axis=1)
