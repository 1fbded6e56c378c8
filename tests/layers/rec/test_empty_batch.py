"""Loops over a batch of 0 sequences: empty results, not errors of TensorFlow."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from returnn_tf.native.portable import portable_ops
from tests.feeds import random_feed
from tests.layers.nets import feed, net_of
from tests.layers.rec.searching import frame_loop, free_loop, search_net

LOOPS: dict[str, dict[str, Any]] = {
    "free": free_loop({"early_stop": True, "length_normalization_exponent": 0.7, "independent_of_batch": True}),
    "history": free_loop(layers={
        "p": {"class": "softmax", "n_out": 5, "from": ["sa", "base:mean"]},
        "sa": {"class": "self_attention", "num_heads": 1, "total_key_dim": 4, "n_out": 3, "from": "emb"},
    }),
    "lstm": free_loop(layers={
        "p": {"class": "softmax", "n_out": 5, "from": ["s", "base:mean"]},
        "s": {"class": "rec", "unit": "lstm", "n_out": 4, "from": "emb"},
    }),
    "frames": frame_loop(),
    "limit": {**free_loop(), "loop": {**free_loop()["loop"], "max_seq_len": "max_len_from('base:data') - 1"}},
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("portable", [False, True])
def test_no_sequences(name: str, portable: bool) -> None:
    network = {**LOOPS[name], "output": {"class": "copy", "from": "loop"}}
    network["best"] = {"class": "decide", "from": "loop", "is_output_layer": True}
    arrays = {key: value[:0] for key, value in feed().items()}
    with portable_ops() if portable else contextlib.nullcontext():
        layers = search_net(network).run(arrays).layers
    assert layers["output"].value.shape[0] == layers["best"].value.shape[0] == 0
    assert layers["output"].beam_scores.shape == (0, 3)


@pytest.mark.parametrize("lens", [[], [0, 0]], ids=str)
def test_training_without_labels(lens: list[int]) -> None:
    """Labels are embedded for all steps before the loop, after one for the first step: there is none of these."""
    unit = {
        "emb": {"class": "linear", "activation": None, "n_out": 3, "from": "output", "initial_output": 0},
        "s": {"class": "rnn_cell", "unit": "lstm", "n_out": 4, "from": "prev:emb"},
        "p": {"class": "softmax", "from": ["s", "prev:emb"], "target": "labels", "loss": "ce"},
        "output": {"class": "choice", "target": "labels", "beam_size": 3, "from": "p", "initial_output": 0},
    }
    net = net_of({"output": {"class": "rec", "from": [], "target": "labels", "unit": unit}}, train=True)
    found = net.run(random_feed(net.extern_data, lengths=lens), with_grad=True)
    assert found.losses["output/p"] == found.counts["output/p"] == 0
    assert found.grads and not any(grad.any() for grad in found.grads.values())
