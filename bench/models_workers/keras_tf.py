"""The steps in Keras (the one that comes with TensorFlow), with its own layers where it has them."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf
from model_rows import DROPOUT, KERNEL, RATE, Model, serve, threads
from tf_losses import loss_of, steps_of

keras = tf.keras
layers = keras.layers


def _feed_forward(x: Any, m: Model, activation: str, scale: float = 1.0) -> Any:
    y = layers.Dense(m.hidden, activation)(layers.LayerNormalization()(x))
    y = layers.Dropout(DROPOUT)(layers.Dense(m.size)(layers.Dropout(DROPOUT)(y)))
    return x + (y if scale == 1 else scale * y)


def _attention(x: Any, mask: Any, m: Model) -> Any:
    y = layers.LayerNormalization()(x)
    size = m.size // m.heads
    y = layers.MultiHeadAttention(m.heads, size, dropout=DROPOUT)(y, y, attention_mask=mask)
    return x + layers.Dropout(DROPOUT)(y)


def _convolution(x: Any, m: Model) -> Any:
    y = layers.Dense(2 * m.size)(layers.LayerNormalization()(x))
    y = y[..., : m.size] * keras.ops.sigmoid(y[..., m.size :])
    # DepthwiseConv1D crashes on a CPU: TensorFlow's kernel does not bear a long filter in the second axis.
    y = layers.DepthwiseConv2D((KERNEL, 1), padding="same")(y[:, :, None])[:, :, 0]
    y = keras.ops.silu(layers.BatchNormalization()(y))
    return x + layers.Dropout(DROPOUT)(layers.Dense(m.size)(y))


def _encoder(x: Any, mask: Any, m: Model) -> Any:
    x = layers.Dense(m.size)(x)
    for _ in range(m.layers):
        if m.kind == "transformer":
            x = _feed_forward(_attention(x, mask, m), m, "relu")
        else:
            x = _attention(_feed_forward(x, m, "silu", 0.5), mask, m)
            x = layers.LayerNormalization()(_feed_forward(_convolution(x, m), m, "silu", 0.5))
    return layers.LayerNormalization()(x)


def _recurrent(x: Any, mask: Any, m: Model, directions: int) -> Any:
    for _ in range(m.layers):
        lstm = layers.LSTM(m.size, return_sequences=True)
        x = (lstm if directions == 1 else layers.Bidirectional(lstm))(x, mask=mask)
    return x


class _Cell(layers.Layer):
    """A step of the attention decoder; ``memory`` is encoder states, keys, mask."""

    def __init__(self, m: Model) -> None:
        super().__init__()
        self.lstm, self.context = layers.LSTMCell(m.hidden), layers.Dense(2 * m.size, use_bias=False)
        self.feedback = layers.Dense(2 * m.size, use_bias=False)
        self.energy = layers.Dense(1, use_bias=False)
        n, frames, encoder = m.hidden, int(m.lengths().max()), 2 * m.size
        self.state_size, self.output_size = [n, n, encoder, frames], n + encoder
        for layer, size in ((self.lstm, n + encoder), (self.context, n), (self.feedback, 1), (self.energy, encoder)):
            layer.build((None, size))
        self.memory: tuple = ()

    def call(self, emb: Any, states: Any) -> Any:
        """Return (state and attention, new states)."""
        (h, c, att, total), (enc, keys, mask) = states, self.memory
        h, (h, c) = self.lstm(tf.concat([emb, att], axis=-1), [h, c])
        hidden = tf.tanh(keys + self.context(h)[:, None] + self.feedback(total[:, :, None]))
        weights = tf.nn.softmax(self.energy(hidden)[..., 0] + mask)
        att = tf.matmul(weights[:, None], enc)[:, 0]
        return tf.concat([h, att], axis=-1), [h, c, att, total + weights]


class _Decoder(layers.Layer):
    """All steps; Keras 3 has no constants for cells."""

    def __init__(self, m: Model) -> None:
        super().__init__()
        self.cell = _Cell(m)
        self.rnn = layers.RNN(self.cell, return_sequences=True)

    def call(self, emb: Any, enc: Any, keys: Any, valid: Any) -> Any:
        """Return [batch, labels, state and attention]."""
        self.cell.memory = enc, keys, tf.cast(tf.where(valid, 0.0, -1e30), keys.dtype)
        return self.rnn(emb)

    def compute_output_shape(self, emb_shape: Any, enc_shape: Any, keys_shape: Any, valid_shape: Any) -> Any:
        """Return the shape, so that Keras does not call the layer with its symbols."""
        return (*emb_shape[:2], self.cell.output_size)


def _attention_model(inputs: dict[str, Any], mask: Any, m: Model) -> Any:
    enc = _recurrent(inputs["x"], mask, m, 2)
    keys = layers.Dense(2 * m.size)(enc)
    emb = layers.Embedding(m.labels, m.hidden)(inputs["before"])
    out = _Decoder(m)(emb, enc, keys, mask)
    return layers.Dense(m.hidden, "tanh")(layers.Concatenate()([out, emb]))


def _model(m: Model, data: dict[str, Any]) -> Any:
    shapes = {"x": (None, m.dim), "mask": (None,), "before": (None,)}
    if m.kind == "lm":
        shapes["x"] = (None,)
    types = {"x": data["x"].dtype.name, "mask": "bool", "before": "int32"}
    inputs = {name: keras.Input(shape, dtype=types[name], name=name) for name, shape in shapes.items()}
    x, mask = inputs["x"], inputs["mask"] if m.shortest < 1 else None
    if m.kind == "attention":
        y = _attention_model(inputs, inputs["mask"], m)
    elif m.kind == "lm":
        y = _recurrent(layers.Embedding(m.labels, m.dim)(x), mask, m, 1)
    elif m.kind == "ctc":
        y = _recurrent(x, mask, m, 2)
    elif m.kind == "feed-forward":
        y = x
        for i in range(m.layers):
            y = layers.Dense(m.size, "relu")(layers.Dropout(DROPOUT)(y) if i else y)
    else:
        y = _encoder(x, None if mask is None else mask[:, None], m)
    logits = layers.Dense(m.labels + (m.kind == "ctc"))(y)
    return keras.Model(inputs, layers.Activation("linear", dtype="float32")(logits))


def make_steps(m: Model) -> dict[str, Callable[[], Any]]:
    """Return the steps of `model_rows.serve`."""
    if m.bfloat16:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    arrays = m.data()
    data = {key: tf.constant(value) for key, value in arrays.items()}
    model, optimizer = _model(m, data), keras.optimizers.Adam(RATE)
    optimizer.build(model.trainable_variables)

    def objective() -> Any:
        before = tf.pad(data["labels"][:, :-1], [[0, 0], [1, 0]])
        mask = tf.sequence_mask(data["lengths"], data["x"].shape[1])
        return loss_of(m, model({"x": data["x"], "mask": mask, "before": before}, training=True), data)

    return steps_of(objective, [var.value for var in model.trainable_variables], optimizer.apply, arrays)


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(threads())
    tf.zeros([])  # what TensorFlow needs by itself is not counted
    serve(make_steps)
