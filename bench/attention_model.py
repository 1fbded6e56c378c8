"""The attention decoder of the benchmarks: as a config, and its training written by hand as a `tf.function`.

Additive attention with weight feedback over given encoder states, an LSTM, a readout layer, and a softmax (Tu et al.
2016). By hand only what must be there is in the loop: the products with the embeddings are made before it, readout,
softmax and loss after it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional

import numpy as np

import returnn_tf
from returnn_tf.util.lazy_tf import tf

END = 0
RATE = 1e-4


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of data and model."""

    batch: int = 20
    steps: int = 40
    frames: int = 60
    encoder: int = 512
    context: int = 256
    embedding: int = 256
    lstm: int = 512
    readout: int = 512
    labels: int = 1000


#: A small one for tests of the benchmarks.
TINY = Sizes(3, 5, 7, 8, 6, 4, 9, 8, 11)


def network(s: Sizes, beam: int = 12, search_options: Any = None, **options: Any) -> dict[str, Any]:
    """Return the network dict.

    :param search_options: more options of the choice
    :param options: more options of the `rec` layer
    """
    unit: dict[str, Any] = {
        "output": {"class": "choice", "target": "classes", "beam_size": beam, "from": "prob", "initial_output": END},
        "end": {"class": "compare", "from": "output", "value": END},
        "emb": {
            "class": "linear", "activation": None, "with_bias": False, "n_out": s.embedding, "from": "output",
            "initial_output": "apply(0)",
        },
        "s": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": s.lstm, "from": ["prev:emb", "prev:att"]},
        "s_ctx": {"class": "linear", "activation": None, "with_bias": False, "n_out": s.context, "from": "s"},
        "feedback": {
            "class": "linear", "activation": None, "with_bias": False, "n_out": s.context, "from": "prev:weights_sum",
        },
        "energy_in": {"class": "combine", "kind": "add", "from": ["base:enc_ctx", "s_ctx", "feedback"]},
        "energy_tanh": {"class": "activation", "activation": "tanh", "from": "energy_in"},
        "energy": {"class": "linear", "activation": None, "with_bias": False, "n_out": 1, "from": "energy_tanh"},
        "weights": {"class": "softmax_over_spatial", "from": "energy"},
        "weights_sum": {"class": "combine", "kind": "add", "from": ["prev:weights_sum", "weights"]},
        "att": {"class": "generic_attention", "weights": "weights", "base": "base:data"},
        "readout": {"class": "linear", "activation": "tanh", "n_out": s.readout, "from": ["s", "att", "prev:emb"]},
        "prob": {"class": "softmax", "from": "readout", "target": "classes", "loss": "ce"},
    }  # fmt: skip
    unit["output"].update(search_options or {})
    loop = {"class": "rec", "from": [], "target": "classes", "max_seq_len": s.steps, "unit": unit, **options}
    return {
        "enc_ctx": {"class": "linear", "activation": None, "n_out": s.context, "from": "data"},
        "output": loop,
        "decision": {"class": "decide", "from": "output"},
    }


def config(s: Sizes, **options: Any) -> Any:
    """Return the config; see `network`."""
    return returnn_tf.Config({
        "extern_data": {
            "data": {"dim": s.encoder},
            "classes": {"dim": s.labels, "sparse": True},
        },
        "network": network(s, **options),
        "optimizer": {"class": "adam"},
        "learning_rate": RATE,
        "behavior_version": 21,
    })  # fmt: skip


def feed(s: Sizes) -> dict[str, np.ndarray]:
    """Return a ragged batch: lengths from half to all of the frames and labels; the last label is the end."""
    rng = np.random.RandomState(1)
    frames = np.linspace(s.frames / 2, s.frames, s.batch).astype("int32")
    lens = np.linspace(s.steps / 2, s.steps, s.batch).astype("int32")
    labels = rng.randint(1, s.labels, (s.batch, s.steps)).astype("int32")
    labels[np.arange(s.batch), lens - 1] = END
    return {
        "data": rng.normal(size=(s.batch, s.frames, s.encoder)).astype("float32"),
        "data/size0": frames,
        "classes": labels,
        "classes/size0": lens,
    }


def set_random_params(net: Any, scale: float = 0.05) -> None:
    """Set the same random values in every network of the same sizes."""
    rng = np.random.RandomState(3)
    net.set_param_values({name: rng.normal(0, scale, p.shape).astype("float32") for name, p in net.params.items()})


_NAMES = {
    "enc_w": "enc_ctx/W",
    "enc_b": "enc_ctx/b",
    "emb": "output/rec/emb/W",
    "lstm_w": "output/rec/s/rec/lstm_cell/kernel",
    "lstm_b": "output/rec/s/rec/lstm_cell/bias",
    "s_ctx": "output/rec/s_ctx/W",
    "feedback": "output/rec/feedback/W",
    "energy": "output/rec/energy/W",
    "read_w": "output/rec/readout/W",
    "read_b": "output/rec/readout/b",
    "out_w": "output/rec/prob/W",
    "out_b": "output/rec/prob/b",
}


def weights(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a network by the short names used here."""
    return {short: params[name] for short, name in _NAMES.items()}


def lstm(z: Any, c: Any) -> Any:
    """Return (c, h) from the sums at the gates i, j, f, o."""
    i, j, f, o = tf.split(z, 4, axis=-1)
    c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
    return c, tf.sigmoid(o) * tf.tanh(c)


class TrainedByHand:
    """Training steps in one `tf.function`.

    :param values: parameters by the names of the framework
    """

    def __init__(self, s: Sizes, values: dict[str, np.ndarray], swap: bool = False) -> None:
        self.sizes = s
        self.swap = swap
        self.variables = {name: tf.Variable(value) for name, value in weights(values).items()}
        self.slots = [{name: tf.Variable(tf.zeros_like(v)) for name, v in self.variables.items()} for _ in range(2)]
        self.count = tf.Variable(0.0)
        signature = [
            tf.TensorSpec([None, None, s.encoder]), tf.TensorSpec([None], "int32"),
            tf.TensorSpec([None, None], "int32"), tf.TensorSpec([None], "int32"),
        ]  # fmt: skip
        self.step = tf.function(self._step, input_signature=signature, autograph=False)

    def _step(self, enc: Any, frames: Any, labels: Any, lens: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self._loss(
                {n: tf.convert_to_tensor(v) for n, v in self.variables.items()}, enc, frames, labels, lens
            )
        gradients = dict(zip(self.variables, tape.gradient(loss, list(self.variables.values()))))
        gradients = {name: tf.convert_to_tensor(gradient) for name, gradient in gradients.items()}
        norm = tf.linalg.global_norm(list(gradients.values()))
        good = tf.logical_and(tf.math.is_finite(norm), tf.math.is_finite(loss))
        tf.cond(good, lambda: self._update(gradients), lambda: tf.constant(False))
        return loss

    def _loss(self, w: dict[str, Any], enc: Any, frames: Any, labels: Any, lens: Any) -> Any:
        s = self.sizes
        labels = tf.transpose(labels)
        steps, batch = tf.unstack(tf.shape(labels))
        before = tf.concat([tf.fill([1, batch], END), labels[:-1]], axis=0)
        emb = tf.gather(w["emb"], before)
        h, att = self._decode(w, emb, enc, frames, steps, batch)
        read = tf.tanh(tf.tensordot(tf.concat([h, att, emb], axis=-1), w["read_w"], 1) + w["read_b"])
        logits = tf.matmul(tf.reshape(read, [-1, s.readout]), w["out_w"]) + w["out_b"]
        ce = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(labels, [-1]), logits)
        mask = tf.transpose(tf.sequence_mask(lens, steps))
        return tf.reduce_sum(tf.where(tf.reshape(mask, [-1]), ce, 0.0))

    def _decode(self, w: dict[str, Any], emb: Any, enc: Any, frames: Any, steps: Any, batch: Any) -> Any:
        """Return (LSTM outputs, attention vectors) of all steps."""
        s = self.sizes
        size = tf.shape(enc)[1]
        enc_ctx = tf.tensordot(enc, w["enc_w"], 1) + w["enc_b"]
        w_emb, w_state = w["lstm_w"][: s.embedding], w["lstm_w"][s.embedding :]
        z = tf.tensordot(emb, w_emb, 1) + w["lstm_b"]
        z = tf.TensorArray("float32", steps, element_shape=[None, 4 * s.lstm]).unstack(z)
        mask = tf.where(tf.sequence_mask(frames, size), 0.0, -1e30)
        energy_w = w["energy"][:, 0]
        arrays = [tf.TensorArray("float32", steps, element_shape=[None, dim]) for dim in (s.lstm, s.encoder)]

        def body(t: Any, c: Any, h: Any, att: Any, total: Any, h_all: Any, att_all: Any) -> Any:
            c, h = lstm(z.read(t) + tf.matmul(tf.concat([att, h], axis=1), w_state), c)
            query = tf.matmul(h, w["s_ctx"])
            hidden = tf.tanh(enc_ctx + query[:, None] + total[:, :, None] * w["feedback"][0])
            energy = tf.tensordot(hidden, energy_w, 1)
            weights = tf.nn.softmax(energy + mask)
            att = tf.matmul(weights[:, None], enc)[:, 0]
            return t + 1, c, h, att, total + weights, h_all.write(t, h), att_all.write(t, att)

        zeros = [tf.zeros(tf.stack([batch, n])) for n in (s.lstm, s.lstm, s.encoder)]
        result = tf.while_loop(
            lambda t, *_: t < steps, body, [0, *zeros, tf.zeros(tf.stack([batch, size])), *arrays],
            maximum_iterations=steps, swap_memory=self.swap,
        )  # fmt: skip
        return result[5].stack(), result[6].stack()

    def _update(self, gradients: dict[str, Any]) -> Any:
        t = self.count.assign_add(1.0)
        for name, var in self.variables.items():
            tf.raw_ops.ResourceApplyAdam(
                var=var.handle, m=self.slots[0][name].handle, v=self.slots[1][name].handle, beta1_power=0.9**t,
                beta2_power=0.999**t, lr=RATE, beta1=0.9, beta2=0.999, epsilon=1e-16, grad=gradients[name],
            )  # fmt: skip
        return tf.constant(True)


def tensors(data: dict[str, np.ndarray]) -> list[Any]:
    """Return the arguments of `TrainedByHand.step`."""
    return [tf.constant(data[key]) for key in ("data", "data/size0", "classes", "classes/size0")]


def training_sides(s: Sizes, options: Optional[dict[str, Any]] = None) -> list[Callable[[], float]]:
    """Return (by hand, framework): functions that train one step and return the loss, from the same values."""
    settings = config(s, **(options or {}))
    net = returnn_tf.Network.from_config(settings, train=True)
    set_random_params(net)
    trainer = returnn_tf.Trainer(net, settings)
    data = feed(s)
    batch = trainer.tensors(data)
    by_hand = TrainedByHand(s, net.get_param_values())
    arrays = tensors(data)
    return [lambda: float(by_hand.step(*arrays)), lambda: float(trainer.step(batch).total_loss)]
