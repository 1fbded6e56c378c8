"""Attention written as layers of their own (dot, softmax, dropout, dot) with the native op and without it.

    python bench/attention_layers.py [--rounds 7] [--threads 2]

Times are CPU seconds of whole training steps of a small Transformer, written so, by the public API: with the op, and
with TensorFlow's ops in its place; all other native ops are the same. The sides take turns; medians over the rounds.
In bfloat16 with ``mixed_precision``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional
from unittest import mock

import numpy as np
from timing import in_turn, run_cases

import returnn_tf
from returnn_tf.ops.dense import labelled_attention

#: Blocks, sequences, frames of the queries, frames of the keys (None: self attention), units, heads.
SIZES = [(2, 8, 200, None, 512, 8), (2, 2, 800, None, 512, 8), (2, 16, 30, 200, 512, 8), (2, 16, 30, 30, 128, 4)]
LABELS = 100
EACH = {"*": None}

Net = dict[str, dict[str, Any]]


def network(blocks: int, own: bool, units: int, heads: int) -> Net:
    """Return the network dict.

    :param own: self attention, else to the frames of the second input
    """
    linear = {"class": "linear", "activation": None, "with_bias": False, "n_out": units}
    net: Net = {"b": {**linear, "from": "data"}, "encoder": {**linear, "from": "data:encoder"}}
    last, size = "b", units // heads
    softmax = {"class": "softmax_over_spatial", "energy_factor": size**-0.5}
    for i in range(blocks):
        b, keys = "b%d_" % i, returnn_tf.tensor.SpatialDim("keys")
        net[b + "norm"] = {"class": "layer_norm", "from": last}
        for part in "qkv":
            source = b + "norm" if own or part == "q" else "encoder"
            net[b + part + "0"] = {**linear, "from": source}
            net[b + part + "1"] = {"class": "split_dims", "axis": "F", "dims": (heads, size), "from": b + part + "0"}
            if part != "q":
                tags = {"set_dim_tags": {"T": keys}}
                net[b + part] = {"class": "reinterpret_data", **tags, "from": b + part + "1"}
        net.update({
            b + "energy": {"class": "dot", "reduce": "F", "from": [b + "q1", b + "k"]},
            b + "weights": {**softmax, "axis": keys, "from": b + "energy"},
            b + "drop": {"class": "dropout", "dropout": 0.1, "dropout_noise_shape": EACH, "from": b + "weights"},
            b + "heads": {"class": "dot", "reduce": keys, "from": [b + "drop", b + "v"]},
            b + "merged": {"class": "merge_dims", "axes": ["dim:%d" % heads, "dim:%d" % size], "from": b + "heads"},
            b + "out": {**linear, "from": b + "merged"},
            b + "sum": {"class": "combine", "kind": "add", "from": [last, b + "out"]},
        })  # fmt: skip
        last = b + "sum"
    net["output"] = {"class": "softmax", "loss": "ce", "from": last}
    return net


def make_step(
    size: tuple[int, int, int, Optional[int], int, int], low: Optional[str], fused: bool
) -> Callable[[], float]:
    """Return a training step, traced by a first call here."""
    blocks, batch, frames, keys, units, heads = size
    inputs = {"data": {"dim": 40}, "encoder": {"dim": 40}, "classes": {"dim": LABELS, "sparse": True}}
    config = returnn_tf.Config({
        "extern_data": inputs, "network": network(blocks, keys is None, units, heads), "behavior_version": 21,
        "optimizer": {"class": "adam"}, "learning_rate": 1e-4, "random_seed": 1, "mixed_precision": low,
    })  # fmt: skip
    rng = np.random.RandomState(1)
    feed: dict[str, Any] = {}
    for key, length in (("data", frames), ("encoder", keys or 1), ("classes", frames)):
        shape = (batch, length)
        sparse = key == "classes"
        feed[key] = rng.randint(0, LABELS, shape).astype("int32") if sparse else rng.normal(size=(*shape, 40))
        feed[key + "/size0"] = np.linspace(max(1, 0.6 * length), length, batch).astype("int32")
    feed = {key: value.astype("float32") if value.dtype == "float64" else value for key, value in feed.items()}
    trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)
    tensors = trainer.tensors(feed)
    with (
        mock.patch.object(labelled_attention, "usable_attention_ops", return_value=None)
        if not fused
        else mock.MagicMock()
    ):
        trainer.step(tensors)
    return lambda: float(trainer.step(tensors).total_loss)


def compare(size: tuple[int, int, int, Optional[int], int, int], low: Optional[str], rounds: int) -> list[str]:
    """Return a line of the table."""
    sides = [make_step(size, low, fused) for fused in (True, False)]
    for _ in range(2):
        losses = [side() for side in sides]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3 if low is None else 1e-2)
    times = in_turn(*sides, rounds, cpu=True)
    blocks, batch, frames, keys, units, heads = size
    what = "%d blocks, %d x %d frames, %s, %d heads of %d, %s" % (
        blocks, batch, frames, "self" if keys is None else "to %d" % keys, heads, units // heads,
        low or "float32",
    )  # fmt: skip
    here, there = 1e3 * np.median(times, axis=0)
    return [what, "%.1f" % here, "%.1f" % there, "%.2f" % np.median(times[:, 0] / times[:, 1])]


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Run the command."""
    run_cases(
        __doc__,
        ["training step", "with the op, CPU ms", "without", "ratio"],
        compare,
        [(size, low) for size in SIZES for low in (None, "bfloat16")],
        arguments,
    )


if __name__ == "__main__":
    main()
