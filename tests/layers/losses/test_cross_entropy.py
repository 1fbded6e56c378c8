"""ce: numpy re-computation of value and gradient for all options, and what stands in the padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.layers.losses.single import LENS, feed_of, frames, linear, log_softmax, network_of, valid

N = 3


def _targets(labels: np.ndarray, smoothing: float, gaussian: bool) -> np.ndarray:
    if gaussian:
        std = 1.0 - smoothing
        k = np.arange(N)
        return np.exp(-0.5 * ((k - labels[:, None]) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    off = smoothing / (N - 1)
    return np.where(np.arange(N) == labels[:, None], 1.0 - smoothing, off)


def _entropy(smoothing: float) -> float:
    off = smoothing / (N - 1)
    return -((1 - smoothing) * np.log(1 - smoothing) + smoothing * np.log(off)) if smoothing else 0.0


def _value(z: np.ndarray, labels: np.ndarray, opts: dict[str, Any]) -> float:
    log_p = log_softmax(z)
    smoothing = opts.get("label_smoothing", 0.0)
    targets = _targets(labels, smoothing, opts.get("label_smoothing_gaussian", False))
    values = -(targets * log_p).sum(axis=1) - _entropy(smoothing)
    hit = np.exp(log_p[np.arange(len(labels)), labels])
    return float((values * (1 - hit) ** opts.get("focal_loss_factor", 0.0)).sum())


OPTIONS = [
    {},
    {"use_fused": False},
    {"label_smoothing": 0.1},
    {"label_smoothing": 0.1, "use_fused": False},
    {"focal_loss_factor": 2.0},
    {"focal_loss_factor": 0.5, "use_fused": False},
    {"label_smoothing": 0.2, "focal_loss_factor": 1.0},
    {"label_smoothing": 0.2, "focal_loss_factor": 1.0, "use_fused": False},
]


@pytest.mark.sampled
@pytest.mark.parametrize("activation", ["softmax", "log_softmax"])
@pytest.mark.parametrize("opts", OPTIONS, ids=str)
def test_value_and_gradient(activation: str, opts: dict[str, Any]) -> None:
    net = network_of(linear("ce", activation=activation, loss_opts=opts))
    feed = feed_of()
    out = net.run(feed, with_grad=True)
    x, z = frames(net, feed)
    labels = valid(feed["classes"])
    np.testing.assert_allclose(out.losses["output"], _value(z, labels, opts), rtol=1e-4)
    assert out.errors["output"] == (z.argmax(axis=1) != labels).sum()
    assert out.counts["output"] == 12
    eps = 1e-4
    for k in range(N):
        bump = np.zeros(N)
        bump[k] = eps
        slope = (_value(z + bump, labels, opts) - _value(z - bump, labels, opts)) / (2 * eps)
        np.testing.assert_allclose(out.grads["output/b"][k], slope, rtol=2e-3, atol=2e-3)


def test_gradient_of_gaussian_targets_is_softmax_minus_targets() -> None:
    """They do not sum to 1, so this is not the exact gradient; it is the one of TensorFlow's op."""
    net = network_of(
        linear("ce", activation="softmax", loss_opts={"label_smoothing": 0.2, "label_smoothing_gaussian": True})
    )
    feed = feed_of()
    out = net.run(feed, with_grad=True)
    x, z = frames(net, feed)
    expected = np.exp(log_softmax(z)) - _targets(valid(feed["classes"]), 0.2, True)
    np.testing.assert_allclose(out.grads["output/W"], x.T @ expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("input_type, activation", [("logits", None), ("log_prob", "log_softmax"), ("prob", "softmax")])
def test_input_types_agree(input_type: str, activation: Any) -> None:
    feed = feed_of()
    expected = network_of(linear("ce", activation="softmax")).run(feed, with_grad=True)
    got = network_of(linear("ce", activation=activation, loss_opts={"input_type": input_type})).run(
        feed, with_grad=True
    )
    np.testing.assert_allclose(got.losses["output"], expected.losses["output"], rtol=1e-5)
    np.testing.assert_allclose(got.grads["output/W"], expected.grads["output/W"], rtol=1e-4, atol=1e-5)


def test_probability_zero_can_be_learned() -> None:
    """relu gives exact zeros: the loss is finite there, and has a gradient."""
    layer = linear("ce", activation="exp", loss_opts={"safe_log_opts": {"eps": 1e-10}})
    net = network_of(layer)
    net.set_param_values({"output/W": np.zeros([4, 3]), "output/b": np.full([3], -100.0)})
    out = net.run(feed_of(), with_grad=True)
    np.testing.assert_allclose(out.losses["output"], -12 * np.log(1e-10), rtol=1e-5)
    assert np.isfinite(out.grads["output/b"]).all()


def test_fake_upper_bound_bounds_the_value_only() -> None:
    feed = feed_of()
    plain = network_of(linear("ce", activation="softmax")).run(feed, with_grad=True)
    bounded = network_of(linear("ce", activation="softmax", loss_opts={"fake_upper_bound": 0.5})).run(
        feed, with_grad=True
    )
    assert bounded.losses["output"] <= 6.0 + 1e-5 < plain.losses["output"]
    np.testing.assert_allclose(bounded.grads["output/W"], plain.grads["output/W"], rtol=1e-5)


def test_dense_targets() -> None:
    net = network_of(linear("ce", "target", activation="softmax"))
    feed = feed_of()
    feed["target"] = np.abs(feed["target"])
    x, z = frames(net, feed)
    out = net.run(feed, with_grad=True)
    np.testing.assert_allclose(out.losses["output"], -(valid(feed["target"]) * log_softmax(z)).sum(), rtol=1e-4)


@pytest.mark.sampled
@pytest.mark.parametrize("opts", [{}, OPTIONS[2], OPTIONS[4], OPTIONS[6], {"input_type": "logits"}], ids=str)
@pytest.mark.parametrize("junk", [np.nan, np.inf])
def test_padded_frames_do_not_matter(opts: dict[str, Any], junk: float) -> None:
    """Whatever stands in the padding, labels that do not exist included, changes neither value nor gradient."""
    others = {
        "bias": {"class": "variable", "shape": [3], "init": 0.5},
        "z": {"class": "combine", "kind": "add", "from": ["data", "bias"]},
    }
    activation = "identity" if "input_type" in opts else "softmax"
    layer = {
        "class": "activation",
        "activation": activation,
        "from": "z",
        "loss": "ce",
        "target": "classes",
        "loss_opts": opts,
    }
    net = network_of(layer, others=others, extern_data={"data": {"dim": 3}, "classes": {"dim": 3, "sparse": True}})
    feed = {k: v for k, v in feed_of(dim=3).items() if not k.startswith("target")}
    before = net.run(feed, with_grad=True)
    padded = np.arange(5) >= LENS[:, None]
    feed["data"] = np.where(padded[..., None], junk, feed["data"]).astype("float32")
    feed["classes"] = np.where(padded, 77, feed["classes"]).astype("int32")
    after = net.run(feed, with_grad=True)
    assert np.isfinite(before.losses["output"])
    np.testing.assert_array_equal(before.losses["output"], after.losses["output"])
    np.testing.assert_allclose(after.grads["bias/bias"], before.grads["bias/bias"], rtol=1e-5)


def test_normalised_and_scaled() -> None:
    feed = feed_of()
    plain = network_of(linear("ce", activation="softmax")).run(feed, with_grad=True)
    opts = {"use_normalized_loss": True, "scale": 0.5}
    out = network_of(linear("ce", activation="softmax", loss_opts=opts, loss_scale=3.0)).run(feed, with_grad=True)
    np.testing.assert_allclose(out.losses["output"], plain.losses["output"] / 12, rtol=1e-5)
    np.testing.assert_allclose(out.total_loss, plain.losses["output"] / 12 * 1.5, rtol=1e-5)
    np.testing.assert_allclose(out.grads["output/b"], plain.grads["output/b"] / 8, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("factor, count", [(0.25, 4.0), ("scalar", 0.5)])
def test_custom_norm_factor(factor: Any, count: float) -> None:
    layer = linear("ce", activation="softmax", loss_opts={"custom_norm_factor": factor})
    others = {"scalar": {"class": "constant", "value": 2.0}} if isinstance(factor, str) else {}
    assert network_of(layer, others=others).run(feed_of()).counts["output"] == count


def test_scale_zero_is_only_reported() -> None:
    out = network_of(linear("ce", activation="softmax", loss_scale=0.0, L2=0.1)).run(feed_of())
    assert out.losses["output"] > 0
    assert out.total_loss < out.losses["output"]
