"""Parameters that several layers use: by reuse_params and by name_scope, and how L2 counts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError

LIN = {"class": "linear", "activation": None, "n_out": 4, "from": "data"}
SUB = {"class": "subnetwork", "from": "data", "subnetwork": {"output": LIN}}


def _network(network: dict[str, Any]) -> Network:
    return Network.from_config(
        Config({"network": network, "extern_data": {"data": {"dim": 4}}, "behavior_version": 21})
    )


@pytest.mark.parametrize(
    "network, names",
    [
        ({"a": LIN, "output": {**LIN, "from": "a", "name_scope": "a"}}, ["a/W", "a/b"]),
        ({"a": LIN, "output": {**LIN, "from": "a", "name_scope": "/a"}}, ["a/W", "a/b"]),
        ({"a": SUB, "output": {**SUB, "from": "a", "name_scope": "/a"}}, ["a/output/W", "a/output/b"]),
        ({"a": LIN, "output": {**LIN, "from": "a", "name_scope": "a", "with_bias": False}}, ["a/W", "a/b"]),
    ],
)
def test_same_name_scope_shares(network: dict[str, Any], names: Any) -> None:
    net = _network(network)
    assert sorted(net.params) == names
    x = np.random.RandomState(1).normal(size=(2, 3, 4)).astype("float32")
    out = net.run({"data": x, "data/size0": np.array([3, 2], "int32")}).layers["output"].value
    values = net.get_param_values()
    w = next(v for k, v in values.items() if k.endswith("W"))
    np.testing.assert_allclose(out, x @ w @ w, rtol=1e-4, atol=1e-5)


def test_same_name_by_chance_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'a[+]b' and 'a[-]b' both have a parameter named 'a__b/W'"):
        _network({"a+b": LIN, "a-b": LIN, "output": {"class": "copy", "from": ["a+b", "a-b"]}})


@pytest.mark.parametrize("how, counts", [({"reuse_params": "a"}, 0), ({"name_scope": "a"}, 1)])
@pytest.mark.parametrize("l2_first, l2_second", [(0.1, 0.0), (0.0, 0.2), (0.1, 0.2)])
def test_l2_counts_what_is_in_the_scope_of_a_layer(
    how: dict[str, str], counts: int, l2_first: float, l2_second: float
) -> None:
    second = {**LIN, **how, "from": "a", "loss": "as_is", "loss_scale": 0.0, "L2": l2_second}
    net = _network({"a": {**LIN, "L2": l2_first}, "output": second})
    x = np.ones((1, 2, 4), "float32")
    total = net.run({"data": x, "data/size0": np.array([2], "int32")}).total_loss
    squares = sum((v**2).sum() for v in net.get_param_values().values())
    np.testing.assert_allclose(total, (l2_first + counts * l2_second) * squares, rtol=1e-4)


@pytest.mark.parametrize("outer, inner, trained", [(False, None, False), (False, True, False), (True, False, False)])
def test_not_trainable_around(outer: bool, inner: Any, trained: bool) -> None:
    sub = {**SUB, "trainable": outer, "subnetwork": {"output": {**LIN, "trainable": inner}}}
    net = _network({"a": sub, "ab": LIN, "output": {"class": "combine", "kind": "add", "from": ["a", "ab"]}})
    assert ("a/output/W" in net.trainable_params) is trained
    assert "ab/W" in net.trainable_params


def test_auto_create_missing() -> None:
    first = {**LIN, "with_bias": False}
    reuse = {"reuse_layer": "a", "auto_create_missing": True}
    net = _network({"a": first, "output": {**LIN, "from": "a", "reuse_params": reuse}})
    assert len(net.params) == 2 and "a/W" in net.params
    assert all(name == "a/W" or name.startswith("output/b") for name in net.params)
