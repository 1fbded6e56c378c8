"""The change from the network of one epoch to that of the next, in memory."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.user_code import config_in_use
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.checkpoint import CheckpointInfo
from returnn_tf.engine.pretrain.current_network import CurrentNetwork
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.logging.log import log

EXTERN = {"data": {"dim": 3}, "classes": {"dim": 2, "sparse": True}}


def network(n_out: int, *sources: str) -> dict[str, Any]:
    return {
        "h": {"class": "linear", "n_out": n_out, "from": "data"},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": ["h", *sources]},
    }


def config_of(first: dict[str, Any], then: dict[str, Any], **settings: Any) -> Config:
    pretrain = {"construction_algo": [first], "copy_param_mode": "subset"}
    base = {"behavior_version": 21, "extern_data": EXTERN, "optimizer": {"class": "adam"}}
    return Config({**base, "network": then, "pretrain": pretrain, **settings})


def test_parameters_grow_and_new_ones_begin_as_always(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a part grows by has the initial values of the new network, so that nothing depends on the way there."""
    said = []
    monkeypatch.setattr(log, "write", lambda level, text, **_: said.append(text))
    W, b = np.ones((3, 4), "float32"), np.full(4, 2.0, "float32")
    info = CheckpointInfo(epoch=1, step=1, random_seed=42, config_sha256="")
    variables = {
        name: Network.from_config(config_of({}, network(4)), train=True).params[name] for name in ("h/W", "h/b")
    }
    variables["h/W"].assign(W)
    variables["h/b"].assign(b)
    checkpoint.save(str(tmp_path / "other"), {"in/" + name[2:]: var for name, var in variables.items()}, {}, info)
    sub = {"in": {"class": "linear", "n_out": 4, "from": "data"}, "output": {"class": "copy", "from": "in"}}
    then = {
        **network(5, "sub"),
        "sub": {"class": "subnetwork", "from": "data", "subnetwork": sub, "load_on_init": str(tmp_path / "other")},
    }
    config = config_of({**network(2), "#info": "a small one", "#config": {"x": 3}}, then)
    schedule = NetworkSchedule(config)
    current = CurrentNetwork(config)
    current.begin(schedule.at(1))
    before = {name: 10.0 + value for name, value in current.net.get_param_values().items()}
    current.net.set_param_values(before)
    current.net.global_step.assign(7)
    assert config.int("x") == 3
    current.enter(schedule.at(2))
    assert "x" not in config and current.trainer.step_count == 7
    after, initial = current.net.get_param_values(), Network.from_config(schedule.at(2).config, train=True)
    expected = {name: initial.initial_value(spec).copy() for name, spec in initial.param_specs.items()}
    expected["h/W"][:, :2], expected["h/b"][:2] = before["h/W"], before["h/b"]
    expected["output/W"][:2], expected["output/b"] = before["output/W"], before["output/b"]
    expected["sub/in/W"], expected["sub/in/b"] = W, b
    assert sorted(after) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    assert all(not var.numpy().any() for name, var in current.trainer.state().items() if var.shape.rank)  # anew
    assert any("2 new (sub/in/W, sub/in/b)" in text for text in said)
    current.close()


@pytest.mark.slow
def test_functions_see_the_settings_of_the_epoch_though_the_network_stays() -> None:
    seen = []

    def scale(source: Any, **_: Any) -> Any:
        seen.append(config_in_use().int("x", 1))
        return source(0)

    layers = network(2)
    layers["scaled"] = {"class": "eval", "eval": scale, "from": "h"}
    layers["output"]["from"] = "scaled"
    config = config_of({**layers, "#config": {"x": 3}}, layers)
    schedule = NetworkSchedule(config)
    current = CurrentNetwork(config)
    feed = {
        "data": np.zeros((1, 2, 3), "float32"),
        "data/size0": np.array([2], "int32"),
        "classes": np.zeros((1, 2), "int32"),
        "classes/size0": np.array([2], "int32"),
    }
    for epoch, x in ((1, 3), (2, 1)):
        (current.begin if epoch == 1 else current.enter)(schedule.at(epoch))
        for step in (current.trainer.step, current.evaluator.step):
            seen.clear()
            step(feed)
            assert set(seen) == {x}, (epoch, step)
    current.close()


@pytest.mark.parametrize("then, kept", [({"dropout": 0.3}, True), ({"n_out": 3}, False)])
def test_the_state_of_the_optimizer_stays_where_no_parameter_is_new(
    then: dict[str, Any], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    monkeypatch.setattr(log, "write", lambda level, text, **_: said.append(text))
    changed = network(2)
    changed["h"].update(then)
    config = config_of(network(2), changed)
    schedule, current = NetworkSchedule(config), CurrentNetwork(config)
    current.begin(schedule.at(1))
    for var in current.trainer.state().values():
        var.assign(var + 5)
    before = {name: var.numpy() for name, var in current.trainer.state().items()}
    current.enter(schedule.at(2))
    after = {name: var.numpy() for name, var in current.trainer.state().items()}
    assert sorted(after) == sorted(before)
    if kept:
        assert [name for name in after if (after[name] != before[name]).any()] == []
    else:
        assert after["optimizer_0/iterations"] == 0 and not after["output/b/adam_m"].any()
    assert said[-1].endswith("; optimizer state: %s" % ("kept" if kept else "reset"))
    current.close()
