"""The step in Keras (the one that comes with TensorFlow): keras.layers.LSTM and GRU, masked where lengths differ."""

from __future__ import annotations

import os
from typing import Any, Callable

import tensorflow as tf
from rows import LABELS, RATE, Row, serve


def make_step(row: Row) -> Callable[[], Any]:
    """Return a whole training step with Adam, in a tf.function."""
    keras, data = tf.keras, {key: tf.constant(value) for key, value in row.data().items()}
    mask = tf.sequence_mask(data["lengths"], row.frames) if row.shortest < 1 else None
    layers, units = [], {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}
    for layer in range(row.layers):
        whole = layer < row.layers - 1 or row.loss != "last"
        lstm = units[row.unit](row.hidden, return_sequences=whole or row.bidirectional)
        layers.append(keras.layers.Bidirectional(lstm) if row.bidirectional else lstm)
    dense = keras.layers.Dense(LABELS + (row.loss == "ctc"))
    optimizer = keras.optimizers.Adam(RATE)

    def loss_of() -> Any:
        x = data["x"]
        for layer in layers:
            x = layer(x, mask=mask, training=True)
        logits = dense(x[:, -1] if row.loss == "last" and row.bidirectional else x)
        if row.loss == "ctc":
            sizes = data["label_lengths"], data["lengths"]
            losses = tf.nn.ctc_loss(data["labels"], logits, *sizes, logits_time_major=False, blank_index=LABELS)
        else:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(data["labels"], logits)
        return tf.reduce_mean(losses)

    loss_of()
    variables = [var.value for layer in [*layers, dense] for var in layer.trainable_variables]
    optimizer.build([var for layer in [*layers, dense] for var in layer.trainable_variables])

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of()
        optimizer.apply(tape.gradient(loss, variables))
        return loss

    return lambda: float(step())


tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["BENCH_THREADS"]))
tf.zeros([])  # what TensorFlow needs by itself is not counted
serve(make_step)
