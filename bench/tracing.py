"""From a config to the end of the first training step: Transformers of 6 + 6 layers and 50 blocks, and 100 layers.

    python bench/tracing.py [--cpu] [--profile]

Planning, variables, tracing of forward, backward and update, and the first step on a tiny batch; TensorFlow is imported
before. The decoder of the Transformer runs in a loop, as users write it: self_attention, attention over the encoder,
and a feed forward part, each with layer norm, dropout and a residual connection. Asked: less than 30 s each on 2 cores.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from typing import Any, Callable

import numpy as np

import returnn_tf
from returnn_tf.blocks import transformer_encoder
from returnn_tf.engine.support import devices
from returnn_tf.util.lazy_tf import tf

ASKED = 30.0
LABELS = 50

Net = dict[str, dict[str, Any]]


def _residual(net: Net, name: str, source: str, dim: int) -> str:
    """Return the output of a block: dropout and the residual connection."""
    net[name + "_drop"] = {"class": "dropout", "dropout": 0.1, "from": name + "_part"}
    net[name] = {"class": "combine", "kind": "add", "n_out": dim, "from": [source, name + "_drop"]}
    return name


def _linear(n_out: int, source: Any, activation: Any = None, with_bias: bool = False) -> dict[str, Any]:
    return {"class": "linear", "activation": activation, "with_bias": with_bias, "n_out": n_out, "from": source}


def _feed_forward(net: Net, name: str, source: str, dim: int) -> str:
    net[name + "_norm"] = {"class": "layer_norm", "from": source}
    net[name + "_hidden"] = _linear(4 * dim, name + "_norm", "relu", True)
    net[name + "_part"] = _linear(dim, name + "_hidden", None, True)
    return _residual(net, name, source, dim)


def _self_attention(net: Net, name: str, source: str, dim: int, left_only: bool) -> str:
    net[name + "_norm"] = {"class": "layer_norm", "from": source}
    net[name + "_att"] = {
        "class": "self_attention", "num_heads": 4, "total_key_dim": dim, "n_out": dim, "from": name + "_norm",
        "attention_left_only": left_only, "attention_dropout": 0.1,
    }  # fmt: skip
    net[name + "_part"] = _linear(dim, name + "_att")
    return _residual(net, name, source, dim)


def _cross_attention(net: Net, name: str, source: str, dim: int, layer: int) -> str:
    net[name + "_norm"] = {"class": "layer_norm", "from": source}
    net[name + "_query0"] = _linear(dim, name + "_norm")
    net[name + "_query"] = {"class": "split_dims", "axis": "F", "dims": (4, dim // 4), "from": name + "_query0"}
    net[name + "_energy"] = {
        "class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": "T?",
        "from": ["base:key%d" % layer, name + "_query"],
    }  # fmt: skip
    net[name + "_weights"] = {
        "class": "softmax_over_spatial",
        "energy_factor": (dim // 4) ** -0.5,
        "from": name + "_energy",
    }
    net[name + "_heads"] = {"class": "generic_attention", "weights": name + "_weights", "base": "base:value%d" % layer}
    net[name + "_merged"] = {"class": "merge_dims", "axes": ["dim:4", "F"], "from": name + "_heads"}
    net[name + "_part"] = _linear(dim, name + "_merged")
    return _residual(net, name, source, dim)


def transformer(dim: int = 32, layers: int = 6, **options: Any) -> Net:
    """Return the layers of encoder and decoder.

    :param options: more options of the `rec` layer
    """
    net: Net = {
        "enc_emb": _linear(dim, "data"),
        "enc_pos": {"class": "positional_encoding", "add_to_input": True, "from": "enc_emb"},
    }
    last = "enc_pos"
    for i in range(layers):
        last = _self_attention(net, "enc%d_self" % i, last, dim, False)
        last = _feed_forward(net, "enc%d_ff" % i, last, dim)
    net["enc"] = {"class": "layer_norm", "from": last}
    for i in range(layers):
        for part in ("key", "value"):
            net["%s%d_0" % (part, i)] = _linear(dim, "enc")
            split = {"class": "split_dims", "axis": "F", "dims": (4, dim // 4), "from": "%s%d_0" % (part, i)}
            net["%s%d" % (part, i)] = split
    unit: Net = {
        "output": {"class": "choice", "target": "classes", "beam_size": 4, "from": "prob", "initial_output": 0},
        "end": {"class": "compare", "from": "output", "value": 0},
        "emb": _linear(dim, "prev:output"),
        "pos": {"class": "positional_encoding", "add_to_input": True, "from": "emb"},
    }
    last = "pos"
    for i in range(layers):
        last = _self_attention(unit, "dec%d_self" % i, last, dim, True)
        last = _cross_attention(unit, "dec%d_cross" % i, last, dim, i)
        last = _feed_forward(unit, "dec%d_ff" % i, last, dim)
    unit["dec"] = {"class": "layer_norm", "from": last}
    unit["prob"] = {"class": "softmax", "from": "dec", "target": "classes", "loss": "ce", "dropout": 0.1}
    net["output"] = {
        "class": "rec",
        "from": [],
        "target": "classes",
        "max_seq_len": "max_len_from('base:enc')",
        "unit": unit,
        **options,
    }
    return net


def deep(dim: int = 16, layers: int = 100) -> Net:
    """Return a hundred layers of several kinds."""
    kinds = [
        lambda source: _linear(dim, source, "tanh", True),
        lambda source: {"class": "layer_norm", "from": source},
        lambda source: {"class": "dropout", "dropout": 0.1, "from": source},
        lambda source: {"class": "rec", "unit": "lstm", "n_out": dim, "from": source},
        lambda source: {"class": "conv", "filter_size": (3,), "padding": "same", "n_out": dim, "from": source},
    ]
    net: Net = {}
    last = "data"
    for i in range(layers - 1):
        net["layer%d" % i] = kinds[i % len(kinds)](last)
        last = "layer%d" % i
    net["output"] = {"class": "softmax", "target": "classes", "loss": "ce", "from": last}
    return net


def encoder(dim: int = 128, layers: int = 50) -> Net:
    """Return the layers of a deep encoder, of the least width for which there are native ops."""
    net: Net = transformer_encoder("encoder", layers=layers, dim=dim, heads=4)
    net["output"] = {"class": "softmax", "target": "classes", "loss": "ce", "from": "encoder"}
    return net


def first_step(network: Net, frames: int, labels: int) -> None:
    """Build everything and run a step."""
    config = returnn_tf.Config({
        "extern_data": {"data": {"dim": 8}, "classes": {"dim": LABELS, "sparse": True}},
        "network": network, "optimizer": {"class": "adam"}, "learning_rate": 1e-4, "behavior_version": 21,
        "gradient_clip_global_norm": 5.0,
    })  # fmt: skip
    devices.set_up(config)
    trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)
    rng = np.random.RandomState(1)
    feed = {
        "data": rng.normal(size=(2, frames, 8)).astype("float32"),
        "data/size0": np.array([frames, frames - 1], "int32"),
        "classes": rng.randint(0, LABELS, (2, labels)).astype("int32"),
        "classes/size0": np.array([labels, labels - 1], "int32"),
    }
    trainer.step(feed)


CASES: dict[str, Callable[[], None]] = {
    "Transformer, 6 + 6 layers": lambda: first_step(transformer(), 9, 5),
    "the same, all in the loop": lambda: first_step(transformer(optimize_move_layers_out=False), 9, 5),
    "100 layers": lambda: first_step(deep(), 7, 7),
    "encoder of 5 blocks": lambda: first_step(encoder(layers=5), 7, 7),
    "encoder of 50 blocks": lambda: first_step(encoder(), 7, 7),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="count CPU seconds instead: for a machine with other load")
    parser.add_argument("--profile", action="store_true", help="say where the time goes")
    parser.add_argument("--only", default="", help="cases which have this in their name")
    args = parser.parse_args()
    clock = time.process_time if args.cpu else time.perf_counter
    tf.constant(0)
    print("%-28s %10s %7s" % ("until after the first step", "seconds", "asked"), flush=True)
    for name, case in CASES.items():
        if args.only not in name:
            continue
        profile = cProfile.Profile() if args.profile else None
        start = clock()
        if profile is None:
            case()
        else:
            profile.runcall(case)
        print("%-28s %10.1f  < %.0f" % (name, clock() - start, ASKED), flush=True)
        if profile is not None:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
