"""ce over many labels: the sums from the input of the layer equal those from its values; when they are computed so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.layers.losses import cross_entropy
from returnn_tf.native.portable import portable_ops
from tests.layers.losses.single import feed_of, linear, network_of
from tests.layers.losses.test_cross_entropy import OPTIONS

FUSED = [opts for opts in OPTIONS if "use_fused" not in opts]


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Treat three labels as many; the list gets an entry for each loss computed so."""
    calls: list[int] = []
    sums = cross_entropy.sums_over_frames

    def counted(*args: Any) -> Any:
        calls.append(1)
        return sums(*args)

    monkeypatch.setattr(cross_entropy, "MIN_LABELS", 3)
    monkeypatch.setattr("returnn_tf.layers.losses.cross_entropy.sums_over_frames", counted)
    return calls


def run(layer: dict[str, Any], train: bool, feed: Any = None, **settings: Any) -> Any:
    """Return losses, errors and gradients of a network of this layer; its parameters are always the same."""
    net = network_of(layer, train=train, **settings)
    rng = np.random.RandomState(1)
    net.set_param_values({name: rng.normal(0, 1, value.shape) for name, value in net.get_param_values().items()})
    return net.run(feed_of() if feed is None else feed, with_grad=True)


def assert_same(got: Any, expected: Any) -> None:
    assert got.errors == expected.errors and got.counts == expected.counts
    np.testing.assert_allclose(got.losses["output"], expected.losses["output"], rtol=1e-5)
    assert set(got.grads) == set(expected.grads)
    for name, grad in expected.grads.items():
        np.testing.assert_allclose(got.grads[name], grad, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.sampled
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("opts", FUSED, ids=str)
def test_same_as_from_the_values(opts: dict[str, Any], native: bool, fused: list[int], monkeypatch: Any) -> None:
    """In training the gradient is computed along with the value; NaN in the padding does not matter."""
    layer = linear("ce", activation="softmax", loss_opts=opts, use_transposed_weights=native, with_bias=native)
    feed = feed_of()
    feed["data"][1, 3:] = np.nan
    if native:
        got = run(layer, True, feed)
    else:
        with portable_ops():
            got = run(layer, True, feed)
    assert fused
    monkeypatch.setattr(cross_entropy, "MIN_LABELS", 4)
    feed["data"][1, 3:] = 0.0
    assert_same(got, run(layer, True, feed))
    assert len(fused) == 1


def test_gradient_outside_of_training(fused: list[int], monkeypatch: Any) -> None:
    """It is computed on request, with a factor on the loss."""
    layer = linear("ce", activation="log_softmax", loss_scale=0.3)
    got = run(layer, False)
    assert fused
    monkeypatch.setattr(cross_entropy, "MIN_LABELS", 4)
    assert_same(got, run(layer, False))


def test_logits_and_a_time_major_layer(fused: list[int], monkeypatch: Any) -> None:
    others = {"first": {"class": "swap_axes", "axis1": "B", "axis2": "T", "from": "data"}}
    layer = linear("ce", loss_opts={"input_type": "logits"}, **{"from": "first"})
    got = run(layer, True, others=others)
    assert fused
    monkeypatch.setattr(cross_entropy, "MIN_LABELS", 4)
    assert_same(got, run(layer, True, others=others))


@pytest.mark.slow
def test_layer_of_a_loop(fused: list[int], monkeypatch: Any) -> None:
    """One that is computed for all steps at once after the loop."""
    unit = {
        "s": {"class": "rec", "unit": "lstm", "n_out": 2, "from": "prev:word"},
        "word": {"class": "linear", "n_out": 2, "from": "output"},
        "prob": {**linear("ce", activation="softmax"), "from": ["s", "data:source"]},
        "output": {"class": "choice", "target": "classes", "beam_size": 2, "from": "prob", "initial_output": 0},
    }
    layer = {"class": "rec", "unit": unit, "target": "classes"}
    got = run(layer, True)
    assert fused
    monkeypatch.setattr(cross_entropy, "MIN_LABELS", 4)
    expected = run(layer, True)
    np.testing.assert_allclose(got.losses["output/prob"], expected.losses["output/prob"], rtol=1e-5)
    for name, grad in expected.grads.items():
        np.testing.assert_allclose(got.grads[name], grad, rtol=1e-5, atol=1e-5, err_msg=name)


READER = {"reader": {"class": "reduce", "mode": "mean", "axis": "F", "from": "output", "loss": "as_is"}}


@pytest.mark.parametrize(
    "layer, settings",
    [
        ({"activation": "softmax"}, {"others": READER}),
        ({"activation": "sigmoid"}, {}),
        ({"activation": "softmax", "loss_opts": {"fake_upper_bound": 1.0}}, {}),
        ({"activation": "softmax", "loss_opts": {"label_smoothing": 0.1, "label_smoothing_gaussian": True}}, {}),
        ({"activation": "softmax", "grad_filter": 1.0}, {}),
        ({"activation": "softmax", "batch_norm": {"masked_time": True}}, {}),
        ({"activation": "softmax"}, {"debug_add_check_numerics_ops": True}),
        ({"activation": "softmax"}, {"maximize_grad_norm": 0.1}),
    ],
    ids=str,
)
def test_where_the_values_are_needed(layer: dict[str, Any], settings: dict[str, Any], fused: list[int]) -> None:
    run(linear("ce", **layer), True, **settings)
    assert not fused


def test_few_labels_as_before(fused: list[int], monkeypatch: Any) -> None:
    monkeypatch.setattr(cross_entropy, "MIN_LABELS", 1000)
    run(linear("ce", activation="softmax"), True)
    assert not fused
