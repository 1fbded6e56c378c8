"""Decoders with attention, which search: `attention_decoder` with an LSTM, `transformer_decoder`."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.blocks.block import (
    Layers,
    MaybeSize,
    Rate,
    Share,
    Size,
    added,
    block,
    check_heads,
    expect_labels,
    linear,
)
from returnn_tf.blocks.transformer import cross_attention, embedded, feed_forward, self_attention
from returnn_tf.config.errors import OptionError


@block
def attention_decoder(
    name: str,
    *,
    encoder: str,
    num_labels: Size,
    target: str = "classes",
    end: Optional[int] = None,
    append_end: bool = True,
    start: Optional[int] = None,
    dim: Size = 1000,
    attention_dim: Size = 1024,
    embedding_dim: Size = 620,
    fertility: bool = True,
    zoneout: Optional[tuple[float, float]] = None,
    dropout: Rate = 0.3,
    label_smoothing: Share = 0.1,
    beam_size: Size = 12,
    max_len: tuple[int, int] = (1, 0),
) -> Layers:
    """Return an LSTM with additive attention and weight feedback, and its search.

    Zeyer et al. 2018 (arXiv:1805.03294). In each step, the energy of a frame depends on the frame, the state of the
    LSTM, and the sum of the weights of the frame so far, which tells what was recognised already. The output comes from
    state, label before, and context, by maxout. Layers: ``<name>``, the loop; ``<name>_decision``, the best hypothesis
    of a search, for ``search_output_layer``.

    :param encoder: layer with a vector for each frame
    :param num_labels: labels of the target
    :param target: data key of the labels
    :param end: the label that ends a sequence; None: one more label, behind those of the target
    :param append_end: put it behind the sequences of the target; False: they have it already
    :param start: the label before the first one; default: that of the end
    :param dim: cells of the LSTM, and features before the maxout
    :param attention_dim: features of the energies
    :param embedding_dim: features of the label before
    :param fertility: scale the sum of the weights by a factor for each frame, which the encoder gives
    :param zoneout: factors of the cell and of the output (Krueger et al. 2017, arXiv:1606.01305); None: none
    :param dropout: before the output
    :param label_smoothing: share of the target that all labels get
    :param beam_size: hypotheses of a search
    :param max_len: (a, b): a search ends after a * frames of the encoder + b labels
    """
    if dim % 2:
        raise OptionError("dim is %d, but the maxout takes pairs. Give an even number." % dim)
    net, labels = _labels(name, "attention_decoder", target, num_labels, end, append_end)
    plain: Layers = {"with_bias": False}
    net[name + "_keys"] = linear(encoder, attention_dim)
    unit = _choice(labels, num_labels if end is None else end, start, beam_size)
    cell: Layers = {"unit": "lstmblock"}
    if zoneout is not None:
        factors = {"zoneout_factor_cell": zoneout[0], "zoneout_factor_output": zoneout[1]}
        cell = {"unit": "zoneoutlstm", "unit_opts": factors}
    unit.update({
        "embedding": linear("prev:output", embedding_dim, **plain),
        "state": {"class": "rnn_cell", **cell, "n_out": dim, "from": ["embedding", "prev:context"]},
        "query": linear("state", attention_dim, **plain),
        "feedback": linear("prev:weights_sum", attention_dim, **plain),
        "energy_in": {"class": "combine", "kind": "add", "from": ["base:%s_keys" % name, "query", "feedback"]},
        "energy_tanh": {"class": "activation", "activation": "tanh", "from": "energy_in"},
        "energy": linear("energy_tanh", 1, **plain),
        "weights": {"class": "softmax_over_spatial", "from": "energy"},
        "weights_sum": added("prev:weights_sum", "weights"),
        "context": {"class": "generic_attention", "weights": "weights", "base": "base:" + encoder},
        "readout_in": linear(["state", "embedding", "context"], dim),
        "readout": {"class": "reduce_out", "mode": "max", "num_pieces": 2, "from": "readout_in"},
        "prob": {"class": "softmax", "from": "readout", "dropout": dropout, **_loss(labels, label_smoothing)},
    })  # fmt: skip
    if fertility:
        net[name + "_fertility"] = linear(encoder, 1, activation="sigmoid", **plain)
        unit["weights_sum"] = {
            "class": "eval", "eval": "source(0) + 0.5 * source(1) * source(2)",
            "from": ["prev:weights_sum", "weights", "base:%s_fertility" % name],
            "out_type": {"dim": 1, "shape": (None, 1)},
        }  # fmt: skip
    return {**net, **_loop(name, encoder, target, labels, unit, max_len)}


@block
def transformer_decoder(
    name: str,
    *,
    encoder: str,
    num_labels: Size,
    target: str = "classes",
    end: Optional[int] = None,
    append_end: bool = True,
    start: Optional[int] = None,
    layers: Size = 6,
    dim: Size = 512,
    heads: Size = 8,
    ff_dim: MaybeSize = None,
    activation: str = "relu",
    positions: bool = True,
    scale_embedding: bool = True,
    dropout: Rate = 0.1,
    label_smoothing: Share = 0.1,
    beam_size: Size = 12,
    max_len: tuple[int, int] = (2, 10),
    init: Any = "glorot_uniform",
) -> Layers:
    """Return blocks of self-attention, attention to an encoder, and feed-forward parts, and their search.

    Vaswani et al. 2017 (arXiv:1706.03762), with layer normalisation as in `transformer_encoder`. In training all steps
    are computed at once. Layers: ``<name>``, the loop; <name>_decision, the best hypothesis of a search, for
    ``search_output_layer``.

    :param encoder: layer with a vector for each frame
    :param num_labels: labels of the target
    :param target: data key of the labels
    :param end: the label that ends a sequence; None: one more label, behind those of the target
    :param append_end: put it behind the sequences of the target; False: they have it already
    :param start: the label before the first one; default: that of the end
    :param layers: number of blocks
    :param dim: features of all blocks
    :param heads: of both attentions
    :param ff_dim: inner features of the feed-forward parts; default: 4 dim
    :param activation: of the feed-forward parts
    :param positions: add sines of the position to the embedding
    :param scale_embedding: multiply the embedding by the root of dim before
    :param dropout: on the embedding, all parts, and attention weights
    :param label_smoothing: share of the target that all labels get
    :param beam_size: hypotheses of a search
    :param max_len: (a, b): a search ends after a * frames of the encoder + b labels
    :param init: initialiser of all matrices
    """
    check_heads(dim, heads)
    net, labels = _labels(name, "transformer_decoder", target, num_labels, end, append_end)
    unit = _choice(labels, num_labels if end is None else end, start, beam_size)
    common: Layers = {"dim": dim, "dropout": dropout, "init": init}
    inner: Layers = {"ff_dim": ff_dim or 4 * dim, "activation": activation}
    unit.update(embedded("block0", "prev:output", positions=positions, scale=scale_embedding, **common))
    for i in range(1, layers + 1):
        last, own = "block%d" % (i - 1), "block%d" % i
        unit.update(self_attention(own + "_att", last, heads=heads, attention_left_only=True, **common))
        cross: Layers = {"memory": encoder, "scope": name, "heads": heads, **common}
        unit.update(cross_attention(net, own + "_cross", own + "_att", **cross))
        unit.update(feed_forward(own, own + "_cross", parts=own + "_ff", **inner, **common))
    unit["decoder"] = {"class": "layer_norm", "from": "block%d" % layers}
    unit["prob"] = {
        "class": "softmax", "from": "decoder", "forward_weights_init": init, **_loss(labels, label_smoothing),
    }  # fmt: skip
    return {**net, **_loop(name, encoder, target, labels, unit, max_len)}


def _labels(
    name: str, function: str, target: str, num_labels: int, end: Optional[int], append_end: bool
) -> tuple[Layers, str]:
    """Return the layers that put the end behind the labels, and the data key of the result.

    :param function: the block
    :raises ConfigError: the end is no label, or is to be among the labels already but unknown
    """
    if end is None and not append_end:
        raise OptionError("append_end is False, so end must be the label with which the sequences end.")
    if end is not None and not 0 <= end < num_labels:
        raise OptionError("end is %d, but the labels are 0 to %d." % (end, num_labels - 1))
    key = name + "_labels"
    net: Layers = {}
    source = "data:" + target
    if append_end:
        source = name + "_labels_end"
        net[source] = {
            "class": "postfix_in_time",
            "postfix": num_labels if end is None else end,
            "from": "data:" + target,
        }
    net[key] = {
        "class": "reinterpret_data", "from": source, "register_as_extern_data": key,
        **expect_labels(num_labels, function, name, target),
    }  # fmt: skip
    if end is None:
        net[key]["set_sparse_dim"] = num_labels + 1
    return net, key


def _choice(labels: str, end: int, start: Optional[int], beam_size: int) -> Layers:
    """Return the label of a step, and whether it is the last one."""
    return {
        "output": {
            "class": "choice", "target": labels, "beam_size": beam_size, "from": "prob",
            "initial_output": end if start is None else start,
        },
        "end": {"class": "compare", "value": end, "from": "output"},
    }  # fmt: skip


def _loss(labels: str, label_smoothing: float) -> Layers:
    smoothed = {"loss_opts": {"label_smoothing": label_smoothing}} if label_smoothing else {}
    return {"target": labels, "loss": "ce", **smoothed}


def _loop(name: str, encoder: str, target: str, labels: str, unit: Layers, max_len: tuple[int, int]) -> Layers:
    """Return the loop over the labels, and the best hypothesis of its search.

    :raises ConfigError: no sequence may have a label
    """
    if min(max_len) < 0 or not any(max_len):
        raise OptionError("max_len must hold numbers of at least 0, one of them above 0, got %s." % (tuple(max_len),))
    return {
        name: {
            "class": "rec", "from": [], "target": labels, "unit": unit,
            "max_seq_len": "max_len_from('base:%s') * %d + %d" % (encoder, *max_len),
        },
        name + "_decision": {
            "class": "decide", "from": name, "target": target, "loss": "edit_distance", "only_on_search": True,
        },
    }  # fmt: skip
