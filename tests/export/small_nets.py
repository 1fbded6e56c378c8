"""Small networks of the usual kinds, to be exported; with the smallest feed-forward one first."""

from __future__ import annotations

from typing import Any

import returnn_tf

EXTERN_DATA = {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}}


def _output(*sources: str) -> dict[str, Any]:
    return {"class": "softmax", "n_out": 5, "from": list(sources)}


def _transformer_block(name: str, source: str) -> dict[str, Any]:
    return {
        name + "_norm": {"class": "layer_norm", "from": source},
        name + "_att": {
            "class": "self_attention", "num_heads": 2, "total_key_dim": 8, "n_out": 8, "from": name + "_norm",
        },
        name + "_add": {"class": "combine", "kind": "add", "from": [source, name + "_att"]},
        name + "_wide": {"class": "linear", "activation": "relu", "n_out": 16, "from": name + "_add"},
        name + "_ff": {"class": "linear", "activation": None, "n_out": 8, "from": name + "_wide"},
        name: {"class": "combine", "kind": "add", "from": [name + "_add", name + "_ff"]},
    }  # fmt: skip


def _lstm(source: str, direction: int = 1) -> dict[str, Any]:
    return {"class": "rec", "unit": "nativelstm2", "n_out": 6, "direction": direction, "from": source}


NETS: dict[str, dict[str, Any]] = {
    "feed_forward": {
        "hidden": {"class": "linear", "activation": "relu", "n_out": 7, "from": "data"},
        "output": _output("hidden"),
    },
    "convolution": {
        "conv": {"class": "conv", "filter_size": (3,), "padding": "same", "activation": "relu", "n_out": 6,
                 "from": "data"},
        "output": _output("conv"),
    },
    "lstm": {"lstm": _lstm("data"), "output": _output("lstm")},
    "blstm": {
        "fw1": _lstm("data"), "bw1": _lstm("data", -1),
        "pool": {"class": "pool", "mode": "max", "pool_size": (2,), "padding": "same", "from": ["fw1", "bw1"]},
        "fw2": _lstm("pool"), "bw2": _lstm("pool", -1),
        "output": _output("fw2", "bw2"),
    },
    "transformer": {
        "embed": {"class": "linear", "activation": None, "n_out": 8, "with_bias": False, "from": "data"},
        "pos": {"class": "positional_encoding", "add_to_input": True, "from": "embed"},
        **_transformer_block("block1", "pos"),
        **_transformer_block("block2", "block1"),
        "output": _output("block2"),
    },
    "attention": {
        "encoder": _lstm("data"),
        "query": {"class": "get_last_hidden_state", "n_out": 12, "from": "encoder"},
        "key": {"class": "linear", "activation": None, "n_out": 12, "from": "encoder"},
        "context": {"class": "dot_attention", "base": "encoder", "base_ctx": "key", "from": "query"},
        "output": _output("context"),
    },
}  # fmt: skip

#: A recognizer with a label loop: attention with an LSTM, planned with search it is a beam search.
DECODER: dict[str, Any] = {
    "encoder": _lstm("data"),
    "key": {"class": "linear", "activation": None, "n_out": 6, "from": "encoder"},
    "decision": {"class": "decide", "from": "output", "is_output_layer": True},
    "output": {
        "class": "rec", "from": [], "target": "classes", "max_seq_len": 5,
        "unit": {
            "embed": {"class": "linear", "activation": None, "n_out": 6, "from": "prev:output", "initial_output": 0},
            "state": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 6, "from": ["embed", "prev:context"]},
            "context": {"class": "dot_attention", "base": "base:encoder", "base_ctx": "base:key", "from": "state"},
            "prob": {"class": "softmax", "target": "classes", "loss": "ce", "from": ["state", "context"]},
            "output": {"class": "choice", "target": "classes", "beam_size": 3, "initial_output": 0, "from": "prob"},
            "end": {"class": "compare", "value": 0, "from": "output"},
        },
    },
}  # fmt: skip

#: Layers whose kernels need entries in all axes, in one format or another.
NEED_FRAMES: dict[str, dict[str, Any]] = {
    "pooled": NETS["blstm"],
    "convolutions": {
        "image": {"class": "split_dims", "axis": "F", "dims": (-1, 1), "from": "data"},
        **{
            name: {"class": "conv", "n_out": 4, "filter_size": (3, 3), "strides": (2, 2), "padding": padding,
                   "use_time_mask": True, "activation": "relu", "from": source}
            for name, padding, source in [("conv0", "same", "image"), ("conv1", "same_static", "conv0")]
        },
        "frames": {"class": "merge_dims", "axes": ["dim:1", "F"], "from": "conv1"},
        "norm": {"class": "layer_norm", "from": "frames"},
        "depthwise": {"class": "conv", "filter_size": (3,), "n_out": 4, "groups": 4, "padding": "same", "from": "norm"},
        "output": _output("depthwise"),
    },
    "mamba": {"mamba": {"class": "rec", "unit": "mamba", "n_out": 8, "from": "data"}, "output": _output("mamba")},
    "best path": {
        "probs": {"class": "softmax", "n_out": 6, "from": "data"},
        "best": {"class": "reduce", "mode": "argmax", "axes": "F", "from": "probs"},
        "before": {"class": "shift_axis", "axis": "T", "amount": 1, "pad_value": 5, "adjust_size_info": False,
                   "from": "best"},
        "is_new": {"class": "compare", "kind": "not_equal", "from": ["best", "before"]},
        "merged": {"class": "masked_computation", "mask": "is_new", "from": "best", "unit": {"class": "copy"}},
        "output": {"class": "remove", "symbol": 5, "from": "merged"},
    },
    "ctc_greedy": {
        "probs": {"class": "softmax", "n_out": 6, "from": "data"},
        "output": {"class": "ctc_greedy", "from": "probs"},
    },
}  # fmt: skip


def network(layers: dict[str, Any], *, search: bool = False, **settings: Any) -> returnn_tf.Network:
    """Plan a network over `EXTERN_DATA`."""
    config = {"network": layers, "extern_data": EXTERN_DATA, "behavior_version": 21, **settings}
    return returnn_tf.Network.from_config(returnn_tf.Config(config), search=search)
