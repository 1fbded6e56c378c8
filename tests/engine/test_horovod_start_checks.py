"""What the ranks compare before they train."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.distributed import start_checks
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.training import resume_point


class Two(World):
    """Two ranks; what the other one says is known."""

    size = 2

    def __init__(self, other: list[Any]) -> None:
        super().__init__()
        self.other = other

    def gather(self, value: Any) -> list[Any]:
        """Return first the digests, then the facts."""
        return [value, self.other.pop(0)]

    def hosts(self) -> list[str]:
        """Return two hosts."""
        return ["node1", "node2"]


def layers(activation: Any) -> dict[str, Any]:
    return {
        "hidden": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "data"},
        "custom": {"class": "eval", "eval": activation, "from": "hidden"},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "custom"},
    }


def facts(activation: Any) -> dict[str, Any]:
    extern_data = {"data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}}
    config = Config({"network": layers(activation), "extern_data": extern_data})
    net = Network.from_config(config, train=True)
    return {"network": start_checks.network_facts(net, config.typed("network"))}


def test_networks_with_the_same_parameters_and_other_options() -> None:
    """A function may have made another network on each rank."""
    ours, theirs = facts("source(0)"), facts("source(0) + 1")
    with pytest.raises(ConfigError) as info:
        start_checks.check_same(Two([start_checks.digest(theirs["network"]), theirs["network"]]), ours)
    text = str(info.value)
    assert "The ranks differ in their network" in text and "layer custom, eval: 'source(0)' on rank 0 (node1)" in text
    assert "'source(0) + 1' on rank 1 (node2)" in text
    assert "layer hidden" not in text and "layer output" not in text


def test_functions_are_the_same_wherever_they_are() -> None:
    """Each process has its own."""

    def made() -> Any:
        return lambda source, **kwargs: source(0) * 2

    ours, theirs = facts(made()), facts(made())
    start_checks.check_same(Two([start_checks.digest(theirs["network"])]), ours)


class Alike(World):
    """Two ranks with the same values, but for some names of their configs."""

    size = 2

    def __init__(self, changes: dict[str, str]) -> None:
        super().__init__()
        self.changes = changes

    def gather(self, value: Any) -> list[Any]:
        """What the other rank says is derived from what this one does."""
        if isinstance(value, dict):
            return [value, {**value, **{key: text for key, text in self.changes.items() if key in value}}]
        return [value, value if not self.changes else value + " of others"]


def test_names_which_are_no_settings_may_differ() -> None:
    assert start_checks.different_names(Alike({}), {"started": "1"}) == []
    assert start_checks.different_names(Alike({"started": "2"}), {"started": "1", "same": "1"}) == ["started"]


def test_a_dataset_that_only_one_rank_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, and not compared with another one of the other rank."""
    monkeypatch.setattr(resume_point, "data_facts", lambda dataset, epoch: {"sequences": str(dataset)})
    config = Config({"network": layers("source(0)"), "extern_data": {"data": {"dim": 3}, "classes": {"dim": 3}}})
    net = Network.from_config(config, train=True)
    point: Any = resume_point.ResumePoint.__new__(resume_point.ResumePoint)
    theirs = {"dataset 'train'": "there", "dataset 'eval'": "there"}
    point._config, point._world, point.epoch = config, Two([start_checks.digest(theirs), theirs]), 1
    data: Any = SimpleNamespace(shared=True, datasets=lambda shared: {"train": 1, "dev": 2, "eval": 3})
    entry = SimpleNamespace(layers=config.typed("network"))
    setup: Any = SimpleNamespace(net=net, entry=entry, trainer=SimpleNamespace(step_count=0))
    with pytest.raises(ConfigError) as info:
        point.check_ranks(data, setup)
    text = str(info.value)
    assert "The ranks differ in their data, but must train the same. dataset 'dev': there on rank 0 (node1); " in text
    assert "absent on rank 1 (node2)" in text and "eval" not in text and "train'" not in text
