"""``load_ignore_missing_vars``: parameters that a checkpoint lacks keep their initial values."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, DataError
from returnn_tf.engine.checkpoints.params import load_checkpoint, save_checkpoint
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.training.engine import Engine
from returnn_tf.engine.training.load_model import load_network


def config_of(*, names: tuple[str, ...] = ("output",), **changes: Any) -> Config:
    layers = {name: {"class": "linear", "n_out": 3, "activation": None, "from": "data"} for name in names}
    both = {"class": "combine", "kind": "add", "from": list(layers), "loss": "as_is", "is_output_layer": True}
    settings = {
        "behavior_version": 21,
        "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}},
        "network": {**layers, "all": both},
        "train": {"class": "Task12AXDataset", "num_seqs": 2},
        "tf_log_dir": None,
        "device": "cpu",
        "num_epochs": 1,
    }
    return Config({**settings, **changes})


@pytest.fixture
def stored(tmp_path: pathlib.Path) -> tuple[str, dict[str, Any]]:
    """Return a checkpoint of the layer "output" alone, and its values."""
    net = Network.from_config(config_of())
    net.params["output/W"].assign(np.arange(27.0).reshape(9, 3))
    save_checkpoint(net, str(tmp_path / "small"))
    return str(tmp_path / "small"), net.get_param_values()


def by_training(config: Config) -> Network:
    with Engine(config, world=World()) as engine:
        return engine.net


def by_another_task(config: Config) -> Network:
    return load_network(config)[0]


@pytest.mark.parametrize("load", [by_training, by_another_task])
def test_what_is_missing_starts_anew(stored, load, capsys: pytest.CaptureFixture[str]) -> None:
    path, values = stored
    wanted = {"load": path, "names": ("output", "new")}
    fresh = Network.from_config(config_of(names=("output", "new"))).get_param_values()
    with pytest.raises(DataError, match=r"does not fit the network:\n.*missing: new/W \[9, 3\]"):
        load(config_of(**wanted))
    found = load(config_of(load_ignore_missing_vars=True, **wanted)).get_param_values()
    np.testing.assert_array_equal(found["output/W"], values["output/W"])
    assert found["new/W"].shape == fresh["new/W"].shape and np.any(found["new/W"])
    assert "small lacks 2 parameters, which keep their values: new/" in capsys.readouterr().out


def test_other_mistakes_are_told(stored) -> None:
    """A checkpoint of another network, or with another shape, is no part of this one."""
    path, _ = stored
    with pytest.raises(DataError, match="missing: other/W"):
        load_network(config_of(names=("other",), load=path, load_ignore_missing_vars=True))
    wide = config_of(names=("output", "new"), load=path, load_ignore_missing_vars=True)
    wide["network"]["output"]["from"] = ["data", "data"]
    with pytest.raises(DataError, match=r"shape: output/W is \[18, 3\] here, stored \[9, 3\]"):
        load_network(wide)
    net = Network.from_config(config_of(names=("output", "new")))
    with pytest.raises(DataError, match="missing: new/W"):
        load_checkpoint(net, path)
