"""The training step of an LSTM language model: here, in Keras, in plain TensorFlow or in PyTorch; a worker of lm.py.

Arguments: side, words, units, layers, sequences, frames, shortest length as a share of the frames; then settings of our
config, ``name=value``. The losses of padded frames do not count anywhere; PyTorch packs its sequences and computes the
output layer on the packed frames.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable

import numpy
import workers

RATE = 1e-3
SIDE = sys.argv[1]
WORDS, UNITS, LAYERS, BATCH, FRAMES = (int(arg) for arg in sys.argv[2:7])
LENGTHS = numpy.linspace(FRAMES, FRAMES * float(sys.argv[7]), BATCH).astype("int32")
SETTINGS = {name: json.loads(value) for name, value in (arg.split("=", 1) for arg in sys.argv[8:])}


def batch() -> tuple[numpy.ndarray, numpy.ndarray]:
    """Words and the words that follow them, int32 [batch, frames]."""
    words = (numpy.random.RandomState(1).rand(BATCH, FRAMES + 1) ** 4 * WORDS).astype("int32")
    return words[:, :-1], words[:, 1:]


def ours() -> Callable[[], Any]:
    """The step by the public API of returnn_tf."""
    import returnn_tf

    network = {"embedding": {"class": "linear", "with_bias": False, "n_out": UNITS, "from": "data"}}
    source = "embedding"
    for layer in range(LAYERS):
        network["lstm%d" % layer] = {"class": "rec", "unit": "lstm", "n_out": UNITS, "from": source}
        source = "lstm%d" % layer
    network["output"] = {"class": "softmax", "from": source, "target": "classes", "loss": "ce"}
    words = {"dim": WORDS, "sparse": True}
    config = returnn_tf.Config(
        {
            "extern_data": {"data": words, "classes": words},
            "network": network,
            "behavior_version": 21,
            "optimizer": {"class": "adam"},
            "learning_rate": RATE,
            **SETTINGS,
        }
    )
    trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)
    x, y = batch()
    tensors = trainer.tensors({"data": x, "data/size0": LENGTHS, "classes": y, "classes/size0": LENGTHS})
    return lambda: float(trainer.step(tensors).total_loss)


def tensorflow(with_keras_optimizer: bool) -> Callable[[], Any]:
    """Keras layers and optimizer in a `tf.function`; "plain" has the fused kernel of Adam instead of the latter."""
    import tensorflow as tf

    keras, (x, y) = tf.keras, batch()
    x, y, lengths = tf.constant(x), tf.constant(y), tf.constant(LENGTHS)
    mask = tf.sequence_mask(lengths, FRAMES) if LENGTHS.min() < FRAMES else None
    embedding, dense = keras.layers.Embedding(WORDS, UNITS), keras.layers.Dense(WORDS)
    layers = [keras.layers.LSTM(UNITS, return_sequences=True) for _ in range(LAYERS)]

    def loss_of() -> Any:
        z = embedding(x)
        for layer in layers:
            z = layer(z, mask=mask, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, dense(z))
        return tf.reduce_sum(losses if mask is None else tf.where(mask, losses, 0.0))

    loss_of()
    kept = [var for layer in [embedding, *layers, dense] for var in layer.trainable_variables]
    variables = [var.value for var in kept]
    optimizer = keras.optimizers.Adam(RATE)
    if with_keras_optimizer:
        optimizer.build(kept)
        update = optimizer.apply
    else:
        slots = [(tf.Variable(tf.zeros_like(var)), tf.Variable(tf.zeros_like(var))) for var in variables]

        def update(grads: Any) -> None:
            for var, grad, (m, v) in zip(variables, grads, slots):
                tf.raw_ops.ResourceApplyAdam(
                    var=var.handle, m=m.handle, v=v.handle, beta1_power=0.9, beta2_power=0.999, lr=RATE, beta1=0.9,
                    beta2=0.999, epsilon=1e-8, grad=tf.convert_to_tensor(grad),
                )  # fmt: skip

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of()
        update(tape.gradient(loss, variables))
        return loss

    return lambda: float(step())


def pytorch() -> Callable[[], Any]:
    """torch.nn modules on packed sequences."""
    import torch

    torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
    embedding, output = torch.nn.Embedding(WORDS, UNITS), torch.nn.Linear(UNITS, WORDS)
    lstm = torch.nn.LSTM(UNITS, UNITS, num_layers=LAYERS, batch_first=True)
    optimizer = torch.optim.Adam([p for m in (embedding, lstm, output) for p in m.parameters()], lr=RATE)
    x, y = (torch.from_numpy(a).long() for a in batch())
    pack = torch.nn.utils.rnn.pack_padded_sequence
    labels = pack(y, torch.from_numpy(LENGTHS).long(), batch_first=True).data

    def step() -> float:
        optimizer.zero_grad()
        packed, _ = lstm(pack(embedding(x), torch.from_numpy(LENGTHS).long(), batch_first=True))
        loss = torch.nn.functional.cross_entropy(output(packed.data), labels, reduction="sum")
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def make_steps() -> dict[str, Callable[[], Any]]:
    """The step of the side."""
    if SIDE == "PyTorch":
        return {"step": pytorch()}
    return {"step": ours() if SIDE == "here" else tensorflow(SIDE == "Keras")}


if __name__ == "__main__":
    if SIDE != "PyTorch":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["BENCH_THREADS"]))
        tf.zeros([])  # what TensorFlow needs by itself is not counted
    workers.serve(make_steps)
