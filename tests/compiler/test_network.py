"""`Network`: parameters, feeds, fetches, gradients and what a lowering gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.graph.emit_node import LoweringError
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim
from tests.feeds import random_feed

EXTERN = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}}


def _net(network: dict[str, Any], train: bool = False, **settings: Any) -> Network:
    base = {"behavior_version": 21, "extern_data": EXTERN, "network": network}
    return Network.from_config(Config({**base, **settings}), train=train)


LINEAR = {"output": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"}}


def test_initial_values_depend_on_name_and_seed_only() -> None:
    one = _net(
        {**LINEAR, "x": {"class": "linear", "activation": None, "n_out": 2, "from": "data", "is_output_layer": True}}
    )
    two, other = _net(LINEAR), _net(LINEAR, random_seed=2)
    np.testing.assert_array_equal(one.params["output/W"].numpy(), two.params["output/W"].numpy())
    assert not np.allclose(two.params["output/W"].numpy(), other.params["output/W"].numpy())


def test_set_param_values_changes_all_or_nothing() -> None:
    net = _net(LINEAR)
    before = net.get_param_values()
    with pytest.raises(ConfigError, match=r"no parameter 'output/w'\. Did you mean 'output/W'"):
        net.set_param_values({"output/b": np.ones(3), "output/w": 1})
    with pytest.raises(ConfigError, match=r"'output/W' has the shape \(4, 3\), not \(3, 4\)"):
        net.set_param_values({"output/b": np.ones(3), "output/W": np.ones((3, 4))})
    for name, value in net.get_param_values().items():
        np.testing.assert_array_equal(value, before[name])


def test_bad_feeds() -> None:
    net = _net(LINEAR)
    feed = random_feed({"data": net.extern_data["data"]})
    with pytest.raises(ConfigError, match="The feed lacks 'data/size0'"):
        net.run({"data": feed["data"]})
    with pytest.raises(ConfigError, match=r"The feed has 'data' of shape \(3, 6\), the network expects"):
        net.run({**feed, "data": feed["data"][:, :, 0]})
    with pytest.raises(ConfigError, match="fetch: layer 'outpu' is not part .* Did you mean 'output'"):
        net.run(feed, fetch=["outpu"])


def test_only_needed_keys_are_fed() -> None:
    net = _net({**LINEAR, "dead": {"class": "softmax", "target": "classes", "from": "data"}})
    assert net.used_data_keys == ["data"]
    assert set(net.input_signature()) == {"data", "data/size0"}


def test_one_dim_for_two_keys_needs_its_lengths_once() -> None:
    time = SpatialDim("time")
    extern = {
        "data": {"dim_tags": [batch_dim, time, FeatureDim("f", 4)]},
        "classes": {"dim_tags": [batch_dim, time], "sparse_dim": FeatureDim("c", 3)},
    }
    net = _net({"output": {"class": "softmax", "loss": "ce", "from": "data"}}, extern_data=extern)
    feed = random_feed(net.extern_data)
    del feed["classes/size0"]
    assert net.run(feed).losses["output"] > 0


@pytest.mark.slow
def test_gradient_is_numeric_gradient() -> None:
    net = _net(
        {
            "h": {"class": "linear", "activation": "tanh", "n_out": 5, "from": "data", "L2": 0.1},
            "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "h", "loss_scale": 0.5},
        }
    )
    time = random_feed(net.extern_data)
    feed = {**time, "classes/size0": time["data/size0"]}
    out = net.run(feed, with_grad=True)
    for name, index in (("h/W", (1, 2)), ("h/b", (3,)), ("output/W", (4, 0))):
        value, eps = net.params[name].numpy(), 1e-2
        losses = []
        for sign in (1, -1):
            changed = value.copy()
            changed[index] += sign * eps
            net.set_param_values({name: changed})
            losses.append(float(net.run(feed).total_loss))  # type: ignore[arg-type]
        net.set_param_values({name: value})
        assert out.grads[name][index] == pytest.approx((losses[0] - losses[1]) / (2 * eps), rel=2e-2, abs=1e-3)


def test_padding_does_not_matter_for_framewise_layers() -> None:
    net = _net({**LINEAR, "h": {"class": "softmax", "loss": "ce", "target": "classes", "from": "output"}})
    feed = random_feed(net.extern_data)
    feed["classes/size0"] = feed["data/size0"]
    out = net.run(feed)
    feed["data"][1, feed["data/size0"][1] :] = 1e3
    feed["classes"][1, feed["data/size0"][1] :] = 0
    assert net.run(feed).losses["h"] == out.losses["h"]


def test_dropout_depends_on_step_and_layer_only() -> None:
    network = {"output": {"class": "dropout", "dropout": 0.5, "dropout_noise_shape": {"*": None}, "from": "data"}}
    net = _net(network, train=True)
    feed = random_feed({"data": net.extern_data["data"]}, longest=50)
    first = net.run(feed).layers["output"].value
    np.testing.assert_array_equal(first, net.run(feed).layers["output"].value)
    net.global_step.assign(1)
    assert not np.array_equal(first, net.run(feed).layers["output"].value)
    assert 0.35 < (first == 0).mean() < 0.65
    kept = first != 0
    np.testing.assert_allclose(first[kept], 2 * feed["data"][kept], rtol=1e-6)
    shared = _net({"output": {"class": "dropout", "dropout": 0.5, "from": "data"}}, train=True)
    mask = shared.run(feed).layers["output"].value == 0
    assert (mask == mask[:1, :1]).all(), "by default one mask serves all frames and sequences"


def test_param_noise_and_dropout_act_in_training_only() -> None:
    opts = {"param_dropout": 0.5, "param_variational_noise": 0.1}
    network = {"output": {**LINEAR["output"], **opts}}
    feed = random_feed({"data": _net(network).extern_data["data"]})
    plain = _net(LINEAR).run(feed).layers["output"].value
    np.testing.assert_array_equal(_net(network).run(feed).layers["output"].value, plain)
    assert not np.allclose(_net(network, train=True).run(feed).layers["output"].value, plain)


def test_user_code_of_wrong_shape_or_dtype_names_the_layer() -> None:
    feed = random_feed({"data": _net(LINEAR).extern_data["data"]})
    net = _net({"output": {"class": "eval", "eval": "tf.reduce_sum(source(0), axis=-1)", "from": "data"}})
    with pytest.raises(LoweringError, match=r"Layer 'output' \(class 'eval'\): the value has the shape .* out_type"):
        net.run(feed)
    net = _net({"output": {"class": "eval", "eval": "tf.cast(source(0), tf.int32)", "from": "data"}})
    with pytest.raises(LoweringError, match=r"the value is int32, .* Declare it in out_type: \{'dtype': 'int32'\}"):
        net.run(feed)
    net = _net({"output": {"class": "eval", "eval": lambda source, **_: source(3), "from": "data"}})
    with pytest.raises(LoweringError, match=r"source\(3\): the layer has only 1 sources"):
        net.run(feed)


@pytest.mark.parametrize("value", [None, 3, [1.0]])
def test_function_that_returns_no_tensor_names_layer_and_option(value: Any) -> None:
    net = _net({"output": {**LINEAR["output"], "activation": lambda x: value}})
    with pytest.raises(LoweringError, match=r"Layer 'output' .*, not a tensor\. Check .* option 'activation'"):
        net.run(random_feed({"data": net.extern_data["data"]}))


def test_layer_names_in_any_script() -> None:
    hidden = {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data"}
    net = _net({"слой": hidden, "output": {**LINEAR["output"], "from": "слой", "loss": "as_is"}}, train=True)
    assert "слой/rec/W" in net.params
    assert "output" in net.run(random_feed(net.extern_data), with_grad=True).losses


def test_batch_norm_free_parts_of_the_plan_print() -> None:
    assert str(_net(LINEAR).plan).splitlines()[-1].startswith("output: linear(data) -> [B, T|time, F|")


def test_empty_sequence_in_the_batch() -> None:
    net = _net({"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}})
    feed = random_feed(net.extern_data)
    feed["data/size0"] = feed["classes/size0"] = np.array([6, 0, 2], "int32")
    assert np.isfinite(net.run(feed).losses["output"])


def test_each_run_says_whether_it_is_training() -> None:
    """Default: as the network was planned."""
    network = {"output": {"class": "dropout", "dropout": 0.5, "from": "data"}, "on": {"class": "train_flag"}}
    for planned in (True, False):
        net = _net({**network, "on": {"class": "train_flag", "is_output_layer": True}}, train=planned)
        feed = random_feed({"data": net.extern_data["data"]}, longest=20)
        for train in (True, False, None):
            layers = net.run(feed, train=train).layers
            on = planned if train is None else train
            assert layers["on"].value == on
            assert np.array_equal(layers["output"].value, feed["data"]) == (not on)


def test_feeds_may_name_the_lengths_of_a_dim_once() -> None:
    """Each set of names has a graph of its own, also where a function has run with another set."""
    network = {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}}
    time = SpatialDim("time")
    dims = {"data": [batch_dim, time, FeatureDim("f", 3)], "classes": [batch_dim, time]}
    extern_data = {key: {"dim_tags": tags} for key, tags in dims.items()}
    extern_data["classes"]["sparse_dim"] = FeatureDim("labels", 2)
    net = Network.from_config(Config({"extern_data": extern_data, "network": network, "behavior_version": 21}))
    feed = random_feed(net.extern_data)
    feed["classes/size0"] = feed["data/size0"]
    less = {name: value for name, value in feed.items() if name != "classes/size0"}
    assert net.run(less).losses["output"] == net.run(feed).losses["output"]
    (function,) = net._functions.values()
    assert len(function.graphs) == 2
