"""The memory of a step of training: what `returnn-tf check --memory` estimates beside what a process needs.

    python bench/step_memory.py [--frames 800] [--sequences 16]

Each network is trained in a process of its own, whose largest resident size is compared before and after the first
large batch. Asked: within 20 %.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from typing import Any

LABELS, UNITS = 60, 256


def linear(source: Any, units: int = UNITS, activation: Any = None) -> dict[str, Any]:
    """Return a linear layer."""
    return {"class": "linear", "activation": activation, "n_out": units, "from": source}


def chain(*layers: dict[str, Any]) -> dict[str, Any]:
    """Return a network of layers, each behind the one before."""
    network, last = {}, "data"
    for number, layer in enumerate(layers):
        network["layer%d" % number] = {**layer, "from": last}
        last = "layer%d" % number
    return {**network, "output": {"class": "softmax", "loss": "ce", "target": "frames", "from": last}}


def transformer() -> dict[str, Any]:
    """Return blocks of self-attention and feed-forward layers."""
    network, last = {"in": linear("data")}, "in"
    for number in range(4):
        name = "b%d_" % number
        attention = {"class": "self_attention", "num_heads": 4, "total_key_dim": UNITS, "n_out": UNITS}
        network.update(
            {
                name + "norm": {"class": "layer_norm", "from": last},
                name + "att": {**attention, "from": name + "norm"},
                name + "out": linear(name + "att"),
                name + "sum": {"class": "combine", "kind": "add", "from": [last, name + "out"]},
                name + "norm2": {"class": "layer_norm", "from": name + "sum"},
                name + "ff": linear(name + "norm2", 4 * UNITS, "relu"),
                name + "ff_out": {**linear(name + "ff"), "dropout": 0.1},
                name + "end": {"class": "combine", "kind": "add", "from": [name + "sum", name + "ff_out"]},
            }
        )
        last = name + "end"
    return {**network, "output": {"class": "softmax", "loss": "ce", "target": "frames", "from": last}}


def attention() -> dict[str, Any]:
    """Return an encoder, and a decoder that attends to it step by step."""
    unit = {
        "emb": {**linear("prev:output"), "initial_output": 0},
        "s": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": UNITS, "from": ["emb", "prev:att"]},
        "q": linear("s"),
        "sum": {"class": "combine", "kind": "add", "from": ["base:ctx", "q"]},
        "tanh": {"class": "activation", "activation": "tanh", "from": "sum"},
        "energy": linear("tanh", 1),
        "weights": {"class": "softmax_over_spatial", "from": "energy"},
        "att0": {"class": "generic_attention", "weights": "weights", "base": "base:enc"},
        "att": {"class": "merge_dims", "axes": "except_batch", "from": "att0"},
        "prob": {"class": "softmax", "from": ["s", "att"], "target": "classes", "loss": "ce"},
        "output": {"class": "choice", "target": "classes", "beam_size": 4, "from": "prob", "initial_output": 0},
    }
    encoder = {"enc": {"class": "rec", "unit": "nativelstm2", "n_out": UNITS, "from": "data"}, "ctx": linear("enc")}
    return {**encoder, "output": {"class": "rec", "from": [], "target": "classes", "unit": unit}}


def networks() -> dict[str, dict[str, Any]]:
    """Return the networks by name."""
    conv = {"class": "conv", "filter_size": (3, 3), "n_out": 32, "padding": "same", "activation": "relu"}
    to_picture = {"class": "split_dims", "axis": "F", "dims": (-1, 1)}
    merged = {"class": "merge_dims", "axes": ["dim:40", "dim:32"]}
    return {
        "feed-forward": chain(*[linear("", 512, "tanh")] * 8),
        "LSTM": chain(*[{"class": "rec", "unit": "nativelstm2", "n_out": UNITS}] * 4),
        "convolution": chain(to_picture, conv, conv, conv, merged),
        "Transformer": transformer(),
        "attention": attention(),
    }


def measure(name: str, sequences: int, frames: int) -> None:
    """Print the estimate and the memory of one step."""
    import numpy as np

    import returnn_tf
    from returnn_tf.compiler.step_memory import Sizes, activation_bytes

    labels = {"dim": 100, "sparse": True}
    config = returnn_tf.Config({
        "network": networks()[name],
        "extern_data": {"data": {"dim": 40}, "classes": labels, "frames": labels},
        "optimizer": {"class": "adam"},
        "learning_rate": 1e-7,
        "behavior_version": 21,
    })  # fmt: skip
    net = returnn_tf.Network.from_config(config, train=True)
    dims = {key: [dim for dim in net.plan.extern_data[key].dims if dim.is_dynamic()] for key in net.plan.extern_data}
    lengths = {"data": frames, "classes": LABELS, "frames": frames}
    sizes = Sizes(sequences, {dim: lengths[key] for key in dims for dim in dims[key]}, frames)

    def feed(batch: int, time: int, count: int) -> dict[str, Any]:
        rng = np.random.default_rng(1)
        arrays = {
            "data": rng.normal(size=(batch, time, 40)).astype("float32"),
            "classes": rng.integers(100, size=(batch, count)).astype("int32"),
            "frames": rng.integers(100, size=(batch, time)).astype("int32"),
        }
        sized = {"%s/size0" % key: np.full(batch, value.shape[1], "int32") for key, value in arrays.items()}
        return {key: value for key, value in {**arrays, **sized}.items() if key in wanted}

    wanted = set(net.input_signature())
    trainer = returnn_tf.Trainer(net, config)
    for _ in range(2):  # traces, and allocates what stays
        trainer.step(feed(2, 10, 4))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trainer.step(feed(sequences, frames, LABELS))
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    estimate = activation_bytes(net.plan, sizes)
    print("%-12s measured %6.0f MB, estimated %6.0f MB, %.2f" % (name, used / 1e6, estimate / 1e6, estimate / used))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=800)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--network", choices=networks())
    args = parser.parse_args()
    if args.network:
        measure(args.network, args.sequences, args.frames)
        return
    for name in networks():
        sizes = ["--frames", str(args.frames), "--sequences", str(args.sequences)]
        subprocess.run([sys.executable, __file__, "--network", name, *sizes], check=True)


if __name__ == "__main__":
    main()
