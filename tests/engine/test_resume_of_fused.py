"""Resume within an epoch of a network that is large enough for the fused ops: the same numbers, bit by bit."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import Config
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from returnn_tf.engine.training.engine import Engine

LAYERS: dict[str, dict[str, Any]] = {
    "embedding": {"class": "linear", "activation": "gelu", "n_out": 512, "from": "data", "dropout": 0.1},
    "attention": {"class": "self_attention", "num_heads": 4, "total_key_dim": 64, "n_out": 512,
                  "attention_dropout": 0.2, "from": "embedding"},
    "depthwise": {"class": "conv", "n_out": 512, "groups": 512, "filter_size": (7,), "padding": "same",
                  "from": "attention"},
    "batch_norm": {"class": "batch_norm", "masked_time": True, "from": "depthwise"},
    "activated": {"class": "activation", "activation": "swish", "from": "batch_norm"},
    "projected": {"class": "linear", "activation": None, "n_out": 512, "from": "activated"},
    "dropped": {"class": "dropout", "dropout": 0.2, "from": "projected", "dropout_noise_shape": {"*": None}},
    "residual": {"class": "combine", "kind": "add", "from": ["dropped", "projected"]},
    "normalised": {"class": "layer_norm", "from": "residual"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "normalised"},
}  # fmt: skip
ONE_EVERY_OTHER_STEP = {
    **LAYERS, "projected": {**LAYERS["projected"], "updater_opts": {"accum_grad_multiple_step": 2}}
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": {"class": "adam"}, "gradient_clip_global_norm": 0.5, "gradient_noise": 0.1},
        {"optimizer": {"class": "nadamkeras"}, "network": ONE_EVERY_OTHER_STEP},
        {"optimizer": {"class": "rmsprop", "momentum": 0.9}, "mixed_precision": "float16"},
        {"optimizer": {"class": "adafactor"}, "weight_average": {"decay": 0.9}},
        {"optimizer": {"class": "scaledadam"}, "accum_grad_multiple_step": 2},
        {"optimizer": {"class": "schedulefreeadamw"}, "mixed_precision": "bfloat16"},
        {"optimizer": {"class": "amsgrad"}, "mixed_precision": "bfloat16", "accum_grad_multiple_step": 3},
    ],
    ids=lambda settings: settings["optimizer"]["class"],
)
def test_within_an_epoch(tmp_path: pathlib.Path, settings: dict[str, Any]) -> None:
    data = {"class": "Task12AXDataset", "num_seqs": 12}
    config = {
        "model": str(tmp_path / "net"), "train": data, "num_epochs": 1, "network": LAYERS, "behavior_version": 21,
        "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}, "batch_size": 100, "max_seqs": 2,
        "learning_rate": 0.01, "save_every_steps": 4, **settings,
    }  # fmt: skip
    with Engine(Config(config)) as engine:
        engine.train()
    last = find_checkpoints(config["model"])[1]
    undisturbed = checkpoint.read(last)
    assert undisturbed["attention/QKV"].size > 200_000
    assert find_step_checkpoints(config["model"])
    checkpoint.delete(last)
    with Engine(Config(config)) as engine:
        engine.train()
    for name, value in checkpoint.read(last).items():
        np.testing.assert_array_equal(value, undisturbed[name], err_msg=name)
