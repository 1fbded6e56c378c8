"""Parts of Transformers, in encoders, decoders and Conformers: each begins with a normalisation, and is residual."""

from __future__ import annotations

from typing import Any

from returnn_tf.blocks.block import Layers, Source, added, dropped, linear


def embedded(
    name: str,
    source: Source,
    *,
    dim: int,
    positions: bool,
    scale: bool,
    dropout: float,
    init: Any = "glorot_uniform",
) -> Layers:
    """Return labels or vectors as vectors with their positions."""
    net = {name + "_embedding": linear(source, dim, with_bias=False, forward_weights_init=init)}
    last = name + "_embedding"
    if scale:
        net[name + "_scaled"] = {"class": "eval", "eval": "source(0) * %r" % dim**0.5, "from": last}
        last = name + "_scaled"
    if positions:
        net[name + "_positions"] = {"class": "positional_encoding", "add_to_input": True, "from": last}
        last = name + "_positions"
    net[name] = dropped(last, dropout)
    return net


def self_attention(
    name: str, source: str, *, dim: int, heads: int, dropout: float, init: Any = "glorot_uniform", **options: Any
) -> Layers:
    """Return self-attention.

    :param options: further ones of the layer ``self_attention``
    """
    return {
        name + "_norm": {"class": "layer_norm", "from": source},
        name + "_heads": {
            "class": "self_attention", "num_heads": heads, "total_key_dim": dim, "n_out": dim,
            "attention_dropout": dropout, "forward_weights_init": init, "from": name + "_norm", **options,
        },
        name + "_out": linear(name + "_heads", dim, with_bias=False, forward_weights_init=init),
        name + "_drop": dropped(name + "_out", dropout),
        name: added(source, name + "_drop"),
    }  # fmt: skip


def feed_forward(
    name: str,
    source: str,
    *,
    dim: int,
    ff_dim: int,
    activation: str,
    dropout: float,
    scale: float = 1.0,
    init: Any = "glorot_uniform",
    parts: str = "",
) -> Layers:
    """Return a feed-forward part.

    :param scale: of its output in the sum
    :param parts: how the names of the other layers begin; default: as ``name``
    """
    parts = parts or name
    inner = {"dropout": dropout, "dropout_noise_shape": {"*": None}}
    return {
        parts + "_norm": {"class": "layer_norm", "from": source},
        parts + "_hidden": linear(parts + "_norm", ff_dim, activation=activation, forward_weights_init=init),
        parts + "_out": linear(parts + "_hidden", dim, forward_weights_init=init, **inner),
        parts + "_drop": dropped(parts + "_out", dropout),
        name: added(source, parts + "_drop", scale=scale),
    }


def cross_attention(
    net: Layers, name: str, source: str, *, memory: str, scope: str, dim: int, heads: int, dropout: float, init: Any
) -> Layers:
    """Return attention of a step to an encoder; add keys and values, which all steps share, to ``net``.

    :param net: the network outside of the loop
    :param memory: the encoder, a layer there
    :param scope: prefix of the names there
    """
    split = {"class": "split_dims", "axis": "F", "dims": (heads, dim // heads)}
    matrix = {"with_bias": False, "forward_weights_init": init}
    for what in ("key", "value"):
        outside = "%s_%s_%s" % (scope, name, what)
        net[outside + "_all"] = linear(memory, dim, **matrix)
        net[outside] = {**split, "from": outside + "_all"}
    return {
        name + "_norm": {"class": "layer_norm", "from": source},
        name + "_query_all": linear(name + "_norm", dim, **matrix),
        name + "_query": {**split, "from": name + "_query_all"},
        name + "_energy": {
            "class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": "T?",
            "from": ["base:%s_%s_key" % (scope, name), name + "_query"],
        },
        name + "_weights": {
            "class": "softmax_over_spatial", "energy_factor": (dim // heads) ** -0.5, "from": name + "_energy",
        },
        name + "_weights_drop": dropped(name + "_weights", dropout),
        name + "_heads": {
            "class": "generic_attention", "weights": name + "_weights_drop", "base": "base:%s_%s_value" % (scope, name),
        },
        name + "_all": {"class": "merge_dims", "axes": "static", "keep_order": False, "from": name + "_heads"},
        name + "_out": linear(name + "_all", dim, **matrix),
        name + "_drop": dropped(name + "_out", dropout),
        name: added(source, name + "_drop"),
    }  # fmt: skip
