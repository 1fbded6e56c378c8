"""Losses and steps for the workers in Keras and in plain TensorFlow."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf
from model_rows import Model


def loss_of(m: Model, logits: Any, data: dict[str, Any]) -> Any:
    """Return the mean over frames or sequences; logits [batch, time, labels]."""
    labels, lengths = data["labels"], data["label_lengths"]
    if m.kind == "ctc":
        sizes = lengths, data["lengths"]
        return tf.reduce_mean(tf.nn.ctc_loss(labels, logits, *sizes, logits_time_major=False, blank_index=m.labels))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if m.shortest == 1:
        return tf.reduce_mean(losses)
    mask = tf.sequence_mask(lengths, labels.shape[1])
    return tf.reduce_sum(tf.where(mask, losses, 0.0)) / tf.cast(tf.reduce_sum(lengths), "float32")


def steps_of(
    objective: Callable[[], Any], variables: list, apply: Callable[[list], Any], arrays: dict[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Return the steps of `model_rows.serve`.

    :param objective: emits the loss in training
    :param apply: emits the update, given the gradients
    """

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = objective()
        return loss, tape.gradient(loss, variables)

    @tf.function(autograph=False)
    def step() -> Any:
        loss, found = gradients()
        apply(found)
        return loss

    forward, both = tf.function(objective, autograph=False), tf.function(gradients, autograph=False)
    return {
        "step": lambda: float(step()),
        "forward": lambda: float(forward()),
        "gradients": lambda: float(both()[0]),
        "input": lambda: len([tf.constant(value) for value in arrays.values()]),
    }
