"""mse, l1, mean_l1, cos, bin_ce, generic_ce, as_is: numpy re-computation and gradients."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from tests.layers.losses.single import LENS, feed_of, frames, linear, network_of, valid


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def _cos(y: np.ndarray, t: np.ndarray) -> np.ndarray:
    return 1 - (y * t).sum(1) / np.linalg.norm(y, axis=1) / np.linalg.norm(t, axis=1)


def _bin_ce(z: np.ndarray, t: np.ndarray, weight: float = 1.0) -> np.ndarray:
    s = _sigmoid(z)
    return -(weight * t * np.log(s) + (1 - t) * np.log(1 - s)).mean(1)


CASES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "mse": lambda y, t: ((y - t) ** 2).mean(1),
    "l1": lambda y, t: np.abs(y - t).sum(1),
    "mean_l1": lambda y, t: np.abs(y - t).mean(1),
    "cos": _cos,
    "bin_ce": _bin_ce,
}


def _check(loss: str, func: Any, target: str = "target", **opts: Any) -> Any:
    net = network_of(linear(loss, target, loss_opts=opts))
    feed = feed_of()
    feed["target"] = (feed["target"] > 0).astype("float32") if loss == "bin_ce" else feed["target"]
    out = net.run(feed, with_grad=True)
    _, y = frames(net, feed)
    t = np.eye(3)[valid(feed["classes"])] if target == "classes" else valid(feed["target"]).astype("float64")
    np.testing.assert_allclose(out.losses["output"], func(y, t).sum(), rtol=1e-4)
    eps = 1e-5
    for k, bump in enumerate(np.eye(3) * eps):
        slope = (func(y + bump, t).sum() - func(y - bump, t).sum()) / (2 * eps)
        np.testing.assert_allclose(out.grads["output/b"][k], slope, rtol=1e-3, atol=1e-3)
    return out, y, t


@pytest.mark.parametrize("loss", sorted(CASES))
def test_value_and_gradient(loss: str) -> None:
    out, y, t = _check(loss, CASES[loss])
    if loss == "bin_ce":
        np.testing.assert_allclose(out.errors["output"], ((y > 0) != (t > 0.5)).mean(1).sum(), rtol=1e-5)
    else:
        assert out.errors["output"] == (y.argmax(1) != t.argmax(1)).sum()


@pytest.mark.parametrize("loss", ["mse", "l1", "mean_l1", "cos"])
def test_labels_are_one_hot_vectors(loss: str) -> None:
    _check(loss, CASES[loss], "classes")


def test_pos_weight() -> None:
    _check("bin_ce", lambda z, t: _bin_ce(z, t, 3.0), pos_weight=3.0)


def test_sse_sigmoid_is_bin_ce() -> None:
    feed = feed_of()
    values = [network_of(linear(name, "target")).run(feed).losses["output"] for name in ("bin_ce", "sse_sigmoid")]
    assert values[0] == values[1]


@pytest.mark.parametrize("loss", ["mse", "cos", "bin_ce", "l1"])
def test_junk_in_the_padding(loss: str) -> None:
    others = {
        "bias": {"class": "variable", "shape": [3], "init": 0.5},
    }
    layer = {"class": "combine", "kind": "add", "from": ["data", "bias"], "loss": loss, "target": "target"}
    net = network_of(layer, others=others, extern_data={"data": {"dim": 3}, "target": {"dim": 3}})
    feed = {k: v for k, v in feed_of(dim=3).items() if not k.startswith("classes")}
    before = net.run(feed, with_grad=True)
    padded = (np.arange(5) >= LENS[:, None])[..., None]
    for key in ("data", "target"):
        feed[key] = np.where(padded, np.nan, feed[key]).astype("float32")
    after = net.run(feed, with_grad=True)
    np.testing.assert_allclose(after.losses["output"], before.losses["output"], rtol=1e-6)
    np.testing.assert_allclose(after.grads["bias/bias"], before.grads["bias/bias"], rtol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "activation, func, slope",
    [
        ("sigmoid", _sigmoid, lambda z: 1 - _sigmoid(z)),
        ("exp", np.exp, np.ones_like),
        (None, lambda z: np.maximum(z, 1e-20), lambda z: 1 / np.maximum(z, 1e-20)),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_generic_ce(activation: Any, func: Any, slope: Any, scale: float) -> None:
    """The factor of the loss does not get into its gradient."""
    net = network_of(linear("generic_ce", activation=activation, loss_scale=scale))
    feed = feed_of()
    if activation is None:
        values = net.get_param_values()
        net.set_param_values({"output/W": values["output/W"] * 0.1, "output/b": values["output/b"] + 3.0})
    x, z = frames(net, feed)
    labels = valid(feed["classes"])
    y = func(z)
    p = y / y.sum(axis=1, keepdims=True)
    out = net.run(feed, with_grad=True)
    np.testing.assert_allclose(out.losses["output"], -np.log(p[np.arange(12), labels]).sum(), rtol=1e-4)
    np.testing.assert_allclose(out.total_loss, out.losses["output"] * scale, rtol=1e-5)
    np.testing.assert_allclose(out.grads["output/W"], x.T @ (slope(z) * (p - np.eye(3)[labels])), rtol=1e-3, atol=1e-4)


def test_as_is_counts_valid_frames_and_all_features() -> None:
    feed = feed_of()
    layer = {"class": "copy", "loss": "as_is"}
    out = network_of(layer).run(feed)
    np.testing.assert_allclose(out.losses["output"], valid(feed["data"]).sum(), rtol=1e-4)
    out = network_of({**layer, "loss_opts": {"use_flatten_frames": False}}).run(feed)
    np.testing.assert_allclose(out.losses["output"], valid(feed["data"]).sum(), rtol=1e-4)
    out = network_of({"class": "copy", "from": "data:classes", "loss": "as_is", "loss_opts": {"as_error": True}}).run(
        feed
    )
    assert out.losses == {} and out.errors["output"] == valid(feed["classes"]).sum()


@pytest.mark.parametrize("dtype", ["int32", "bool", "int64"])
def test_as_is_of_whole_numbers_has_no_gradient(dtype: str) -> None:
    feed = feed_of()
    z = {"class": "linear", "activation": None, "n_out": 3, "from": "data", "L2": 0.5}
    layer = {"class": "cast", "dtype": dtype, "from": "z", "loss": "as_is", "loss_scale": 2.0}
    net = network_of(layer, others={"z": z}, train=True)
    out = net.run(feed, with_grad=True, fetch=["z"])
    expected = valid(out.layers["z"].value).astype(dtype).astype("float64").sum()
    squares = sum((value.astype("float64") ** 2).sum() for value in net.get_param_values().values())
    np.testing.assert_allclose(out.losses["output"], expected)
    np.testing.assert_allclose(out.total_loss, 2 * expected + 0.5 * squares, rtol=1e-5)
    np.testing.assert_allclose(out.grads["z/W"], net.get_param_values()["z/W"], rtol=1e-5)


def test_constraints_count_without_a_loss() -> None:
    net = network_of({"class": "linear", "activation": None, "n_out": 3, "L2": 0.5})
    out = net.run(feed_of(), with_grad=True)
    weights = net.get_param_values()["output/W"].astype("float64")
    np.testing.assert_allclose(out.total_loss, 0.5 * (weights**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(out.grads["output/W"], weights, rtol=1e-5)
    assert network_of({"class": "linear", "activation": None, "n_out": 3}).run(feed_of()).total_loss is None


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_padded_frames_never_count(loss: str) -> None:
    """Also not in the layout [time, batch] that recurrent layers have."""
    feed = feed_of()
    rec = {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data"}
    losses = []
    for flat in (True, False):
        layer = {"class": "softmax", "from": "rec", "loss": loss, "target": "classes"}
        net = network_of({**layer, "loss_opts": {"use_flatten_frames": flat}}, others={"rec": rec})
        losses.append(net.run(feed).losses["output"])
    assert losses[0] == losses[1] > 0
