"""`search_score` and `expected_loss`: values by numpy, gradients by differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from tests.layers.nets import feed
from tests.layers.rec.searching import free_loop, hypotheses, search_net

SEARCH = {"search": True, "length_normalization": False}
RISK: dict[str, Any] = {"loss": {"class": "edit_distance"}, "loss_kind": "error"}


def risk_net(**options: Any) -> Any:
    network = {
        **free_loop(SEARCH),
        "hyps": {"class": "copy", "from": "loop", "is_output_layer": True},
        "output": {
            "class": "copy", "from": "loop", "target": "labels", "loss": "expected_loss",
            "loss_opts": {**RISK, **options},
        },
    }  # fmt: skip
    return search_net(network, train=True, search=False)


def distance(a: Any, b: Any) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        new = [i + 1]
        for j, y in enumerate(b):
            new.append(min(row[j + 1] + 1, new[j] + 1, row[j] + (x != y)))
        row = new
    return row[-1]


def expected(found: Any, arrays: Any, *, norm: bool, divide: bool, subtract: bool) -> float:
    total = 0.0
    for b, hyps in enumerate(found):
        scores = np.array([score for score, _ in hyps], "float64")
        reference = arrays["labels"][b, : arrays["labels/size0"][b]].tolist()
        losses = np.array([distance(labels, reference) for _, labels in hyps], "float64")
        weights = np.exp(scores)
        if norm:
            weights /= weights.sum()
        if subtract:
            losses -= losses.mean()
        total += (weights * losses).sum() / (len(hyps) if divide else 1)
    return total


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("divide, subtract", [(True, True), (False, False)])
def test_expected_loss(norm: bool, divide: bool, subtract: bool) -> None:
    """All options are on by default."""
    options = {"norm_scores": norm, "divide_beam_size": divide, "subtract_average_loss": subtract}
    net = risk_net(**{name: value for name, value in options.items() if not value})
    out = net.run(feed(), with_grad=True)
    value = expected(hypotheses(out.layers["hyps"]), feed(), norm=norm, divide=divide, subtract=subtract)
    np.testing.assert_allclose(out.losses["output"], value, rtol=1e-4, atol=1e-5)
    assert abs(out.grads["loop/rec/p/W"]).max() > 1e-3


def by_differences(net: Any, name: str, loss: str) -> np.ndarray:
    start, step = net.params[name].numpy(), 1e-2
    result = np.zeros_like(start)
    for i in np.ndindex(start.shape):
        values = []
        for sign in (1, -1):
            changed = start.copy()
            changed[i] += sign * step
            net.set_param_values({name: changed})
            values.append(net.run(feed()).losses[loss])
        result[i] = (values[0] - values[1]) / (2 * step)
    net.set_param_values({name: start})
    return result


@pytest.mark.slow
def test_gradient_of_expected_loss() -> None:
    net = risk_net(norm_scores_stop_gradient=False)
    out = net.run(feed(), with_grad=True)
    np.testing.assert_allclose(
        out.grads["loop/rec/p/b"], by_differences(net, "loop/rec/p/b", "output"), rtol=0.02, atol=2e-3
    )


@pytest.mark.slow
def test_correction_of_the_gradient_only() -> None:
    plain = risk_net(subtract_average_loss=False).run(feed(), with_grad=True)
    corrected = risk_net().run(feed(), with_grad=True)
    both = risk_net(loss_correction_grad_only=True).run(feed(), with_grad=True)
    np.testing.assert_allclose(both.losses["output"], plain.losses["output"], rtol=1e-5)
    np.testing.assert_allclose(both.grads["loop/rec/p/W"], corrected.grads["loop/rec/p/W"], rtol=1e-4, atol=1e-6)
    assert abs(plain.losses["output"] - corrected.losses["output"]) > 1e-3


@pytest.mark.slow
def test_search_score() -> None:
    network = {
        **free_loop(SEARCH),
        "all": {"class": "copy", "from": "loop", "loss": "search_score", "loss_scale": 0},
        "output": {"class": "decide", "from": "loop", "loss": "search_score"},
    }
    net = search_net(network, train=True, search=False)
    out = net.run(feed(), with_grad=True)
    scores = out.layers["all"].beam_scores
    np.testing.assert_allclose(out.losses["all"], -scores.sum(), rtol=1e-5)
    np.testing.assert_allclose(out.losses["output"], -scores.max(axis=1).sum(), rtol=1e-5)
    np.testing.assert_allclose(
        out.grads["loop/rec/p/b"], by_differences(net, "loop/rec/p/b", "output"), rtol=0.02, atol=2e-3
    )


def test_search_score_is_not_reported_without_search() -> None:
    network = {**free_loop(target="labels"), "output": {"class": "copy", "from": "dec"}}
    network["dec"] = {"class": "decide", "from": "loop", "loss": "search_score", "loss_scale": 0}
    out = search_net(network, train=True, search=False).run(feed())
    assert "dec" not in out.losses and "dec" not in out.errors
    assert search_net(network).run(feed()).losses["dec"] > 0


@pytest.mark.parametrize(
    "layer, match",
    [
        ({"class": "copy", "from": "data", "loss": "search_score"}, "needs the hypotheses of a search"),
        ({"class": "decide", "from": "data", "loss": "search_score"}, "only_on_search"),
        (
            {"class": "copy", "from": "labels", "loss": "expected_loss", "target": "labels", "loss_opts": RISK},
            "needs the hypotheses of a search",
        ),
        (
            {"class": "copy", "from": "loop", "loss": "expected_loss", "target": "labels",
             "loss_opts": {**RISK, "loss_kind": "eror"}},
            "'loss_kind' is 'eror'.*'error'",
        ),
        (
            {"class": "copy", "from": "loop", "loss": "expected_loss", "target": "labels",
             "loss_opts": {**RISK, "loss": "as_is"}},
            "not a risk",
        ),
        (
            {"class": "copy", "from": "loop", "loss": "expected_loss", "target": "labels",
             "loss_opts": {**RISK, "loss": {"class": "edit_distance", "typo": 1}}},
            "unknown option 'typo'",
        ),
    ],
)  # fmt: skip
def test_bad_input(layer: dict[str, Any], match: str) -> None:
    if layer["from"] == "labels":
        layer["from"] = "data:labels"
    with pytest.raises(ConfigError, match=match):
        search_net({**free_loop(SEARCH), "output": layer}, train=True, search=False)


def test_expected_loss_may_be_planned_without_hypotheses_where_it_is_not_computed() -> None:
    layer = {"class": "copy", "from": "data:labels", "loss": "expected_loss", "target": "labels", "loss_opts": RISK}
    net = search_net({**free_loop(SEARCH), "output": layer}, train=False, search=False)
    with pytest.raises(ConfigError, match="Layer 'output'.*needs the hypotheses of a search"):
        net.run(feed())
