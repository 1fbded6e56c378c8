"""The steps by the public API of returnn_tf, with networks as users write them."""

from __future__ import annotations

from typing import Any, Callable

import attention_model
from model_rows import DROPOUT, KERNEL, RATE, Model, serve, threads

import returnn_tf
from returnn_tf import blocks
from returnn_tf.util.lazy_tf import tf

Net = dict[str, dict[str, Any]]
EACH = {"*": None}
"""Dropout with a mask for every entry, as the others draw it."""


def _linear(source: Any, n_out: int, activation: Any = None, dropout: float = 0.0, **options: Any) -> dict[str, Any]:
    noise = {"dropout": dropout, "dropout_noise_shape": EACH} if dropout else {}
    return {"class": "linear", "activation": activation, "n_out": n_out, "from": source, **noise, **options}


def _residual(net: Net, name: str, source: str, part: str, scale: float = 1.0) -> str:
    net[name + "_drop"] = {"class": "dropout", "dropout": DROPOUT, "dropout_noise_shape": EACH, "from": part}
    if scale != 1:
        net[name + "_scaled"] = {"class": "eval", "eval": "source(0) * %r" % scale, "from": name + "_drop"}
    net[name] = {"class": "combine", "kind": "add", "from": [source, name + ("_scaled" if scale != 1 else "_drop")]}
    return name


def _feed_forward(net: Net, name: str, source: str, m: Model, activation: str, scale: float = 1.0) -> str:
    net[name + "_norm"] = {"class": "layer_norm", "from": source}
    net[name + "_hidden"] = _linear(name + "_norm", m.hidden, activation)
    net[name + "_out"] = _linear(name + "_hidden", m.size, dropout=DROPOUT)
    return _residual(net, name, source, name + "_out", scale)


def _attention(net: Net, name: str, source: str, m: Model) -> str:
    net[name + "_norm"] = {"class": "layer_norm", "from": source}
    net[name + "_att"] = {
        "class": "self_attention", "num_heads": m.heads, "total_key_dim": m.size, "n_out": m.size,
        "attention_dropout": DROPOUT, "from": name + "_norm",
    }  # fmt: skip
    net[name + "_out"] = _linear(name + "_att", m.size, with_bias=False)
    return _residual(net, name, source, name + "_out")


def _convolution(net: Net, name: str, source: str, m: Model) -> str:
    net[name + "_norm"] = {"class": "layer_norm", "from": source}
    net[name + "_in"] = _linear(name + "_norm", 2 * m.size)
    net[name + "_glu"] = {"class": "gating", "activation": None, "from": name + "_in"}
    net[name + "_depth"] = {
        "class": "conv", "filter_size": (KERNEL,), "padding": "same", "n_out": m.size, "groups": m.size,
        "with_bias": True, "from": name + "_glu",
    }  # fmt: skip
    net[name + "_bn"] = {"class": "batch_norm", "masked_time": True, "from": name + "_depth"}
    net[name + "_swish"] = {"class": "activation", "activation": "swish", "from": name + "_bn"}
    net[name + "_out"] = _linear(name + "_swish", m.size)
    return _residual(net, name, source, name + "_out")


def _encoder(m: Model) -> Net:
    net: Net = {"in": _linear("data", m.size)}
    last = "in"
    for i in range(m.layers):
        if m.kind == "transformer":
            last = _attention(net, "self%d" % i, last, m)
            last = _feed_forward(net, "ff%d" % i, last, m, "relu")
            continue
        last = _feed_forward(net, "ff%da" % i, last, m, "swish", 0.5)
        last = _attention(net, "self%d" % i, last, m)
        last = _convolution(net, "conv%d" % i, last, m)
        last = _feed_forward(net, "ff%db" % i, last, m, "swish", 0.5)
        net["norm%d" % i] = {"class": "layer_norm", "from": last}
        last = "norm%d" % i
    net["norm"] = {"class": "layer_norm", "from": last}
    return net


def _recurrent(m: Model, source: str, directions: int) -> tuple[Net, Any]:
    net: Net = {}
    sources: Any = source
    for i in range(m.layers):
        for name, direction in (("fw%d" % i, 1), ("bw%d" % i, -1))[:directions]:
            net[name] = {"class": "rec", "unit": "lstm", "n_out": m.size, "direction": direction, "from": sources}
        sources = ["fw%d" % i, "bw%d" % i][:directions]
    return net, sources


def _block(m: Model) -> Net:
    """Return an encoder as `returnn_tf.blocks` writes it, with positions, time masks and another dropout."""
    function = {"transformer": blocks.transformer_encoder, "conformer": blocks.conformer}[m.kind]
    sizes = {"layers": m.layers, "dim": m.size, "heads": m.heads, "ff_dim": m.hidden, "dropout": DROPOUT}
    return function("norm", source="data", **sizes)


def network(m: Model, *, of_blocks: bool = False) -> Net:
    """Return the network dict."""
    if m.kind == "attention":
        net, sources = _recurrent(m, "data", 2)
        net["enc"] = {"class": "copy", "from": sources}
        sizes = attention_model.Sizes(
            encoder=2 * m.size, context=2 * m.size, embedding=m.hidden, lstm=m.hidden, readout=m.hidden,
            labels=m.labels,
        )  # fmt: skip
        decoder = attention_model.network(sizes)
        decoder["enc_ctx"]["from"] = "enc"
        decoder["output"]["unit"]["att"]["base"] = "base:enc"
        decoder["output"]["max_seq_len"] = "max_len_from('base:enc')"
        return {**net, **decoder}
    if m.kind == "feed-forward":
        net, last = {}, "data"
        for i in range(m.layers):
            net["h%d" % i] = _linear(last, m.size, "relu", DROPOUT if i else 0.0)
            last = "h%d" % i
    elif m.kind == "lm":
        net, last = _recurrent(m, "emb", 1)
        net["emb"] = _linear("data", m.dim, with_bias=False)
    elif m.kind == "ctc":
        net, last = _recurrent(m, "data", 2)
    else:
        net, last = (_block if of_blocks else _encoder)(m), "norm"
    loss = "ctc" if m.kind == "ctc" else "ce"
    net["output"] = {"class": "softmax", "from": last, "target": "classes", "loss": loss}
    return net


def config(m: Model, *, of_blocks: bool = False) -> Any:
    """Return the config of a training with Adam."""
    data = {"sparse": True, "dim": m.labels} if m.kind == "lm" else {"dim": m.dim}
    return returnn_tf.Config({
        "extern_data": {"data": data, "classes": {"dim": m.labels, "sparse": True}},
        "network": network(m, of_blocks=of_blocks),
        "behavior_version": 21, "optimizer": {"class": "adam"}, "learning_rate": RATE,
        **({"mixed_precision": "bfloat16"} if m.bfloat16 else {}),
    })  # fmt: skip


def make_steps(m: Model, *, of_blocks: bool = False) -> dict[str, Callable[[], Any]]:
    """Return the steps of `model_rows.serve`."""
    settings = config(m, of_blocks=of_blocks)
    trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(settings, train=True), settings)
    arrays = m.data()
    feed = {"data": arrays["x"], "data/size0": arrays["lengths"], "classes": arrays["labels"]}
    feed["classes/size0"] = arrays["label_lengths"]
    tensors = trainer.tensors(feed)

    def lower(inputs: Any) -> Any:
        return trainer.net.lower(inputs, train=True, step=trainer.net.global_step.read_value())

    forward = trainer.net.feed_function(lambda inputs: lower(inputs).objective)
    gradients = trainer.net.feed_function(
        lambda inputs: list(trainer.steps.updater.gradients(lower(inputs)).raw.values())
    )
    return {
        "step": lambda: float(trainer.step(tensors).total_loss),
        "forward": lambda: float(forward(tensors)),
        "gradients": lambda: float(tf.reduce_sum(gradients(tensors)[0])),
        "input": lambda: len(trainer.tensors(feed)),
    }


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(threads())
    tf.zeros([])  # what TensorFlow needs by itself is not counted
    serve(make_steps)
