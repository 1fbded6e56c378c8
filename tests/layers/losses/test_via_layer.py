"""via_layer: the gradient is the given one, and the value that of the other layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from tests.layers.losses.single import LENS, network_of

EXTERN = {"data": {"dim": 3}, "classes": {"dim": 2, "sparse": True}}
Z = {"class": "linear", "activation": None, "n_out": 3, "from": "data"}
P = {"class": "activation", "activation": "softmax", "from": "z"}
BW = {"class": "fast_bw", "align_target": "ctc", "align_target_key": "classes", "input_type": "prob", "from": "p"}


def _feed() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {
        "data": rng.normal(size=(3, 5, 3)).astype("float32"),
        "data/size0": LENS,
        "classes": rng.integers(0, 2, size=(3, 1)).astype("int32"),
        "classes/size0": np.ones([3], "int32"),
    }


def _run(opts: dict[str, Any], scale: float = 1.0, fetch: Any = ("bw",), **others: Any) -> Any:
    layer = {"class": "copy", "from": "p", "loss": "via_layer", "loss_scale": scale, "loss_opts": opts}
    net = network_of(layer, others={"z": Z, "p": P, "bw": BW, **others}, extern_data=EXTERN)
    net.set_param_values({"z/W": np.eye(3), "z/b": np.zeros([3])})
    return net.run(_feed(), with_grad=True, fetch=fetch)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_full_sum_training_has_the_gradient_of_ctc(scale: float) -> None:
    out = _run({"align_layer": "bw", "loss_wrt_to_act_in": "softmax"}, scale)
    ctc = {
        "class": "activation",
        "activation": "softmax",
        "from": "z",
        "loss": "ctc",
        "target": "classes",
        "loss_scale": scale,
    }
    net = network_of(ctc, others={"z": Z}, extern_data=EXTERN)
    net.set_param_values({"z/W": np.eye(3), "z/b": np.zeros([3])})
    expected = net.run(_feed(), with_grad=True)
    np.testing.assert_allclose(out.losses["output"], expected.losses["output"], rtol=1e-5)
    np.testing.assert_allclose(out.grads["z/W"], expected.grads["z/W"], rtol=1e-4, atol=1e-5)
    assert out.counts["output"] == 12


def test_gradient_wrt_the_output_goes_on_through_the_softmax() -> None:
    out = _run({"align_layer": "bw"})
    p, a, x = out.layers["output"].value, out.layers["bw"].value, _feed()["data"]
    grad = np.zeros([3, 3])
    for b, n in enumerate(LENS):
        for t in range(n):
            error = p[b, t] - a[b, t]
            grad += np.outer(x[b, t], p[b, t] * (error - (error * p[b, t]).sum()))
    np.testing.assert_allclose(out.grads["z/W"], grad, rtol=1e-4, atol=1e-5)


def test_error_signal_by_an_eval_layer() -> None:
    signal = {"class": "eval", "eval": "source(0) * 2.0", "from": "bw", "copy_output_loss_from_source_idx": 0}
    out = _run({"error_signal_layer": "signal", "loss_wrt_to_act_in": True}, signal=signal)
    a, x = out.layers["bw"].value, _feed()["data"]
    grad = sum(x[b, :n].T @ (2 * a[b, :n]) for b, n in enumerate(LENS))
    np.testing.assert_allclose(out.grads["z/W"], grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "combine, weights",
    [
        ({"kind": "add"}, (1, 1)),
        ({"kind": "average"}, (0.5, 0.5)),
        ({"kind": "eval", "eval": "a * source(0) + source(1)", "eval_locals": {"a": 0.25}}, (0.25, 1)),
    ],
    ids=["add", "average", "eval"],
)
def test_combined_losses(combine: dict[str, Any], weights: tuple[float, float]) -> None:
    """eval_for_output_loss combines the losses of the sources as it does their outputs."""
    other = {**BW, "am_scale": 0.5}
    both = {"class": "combine", **combine, "from": ["bw", "bw2"], "eval_for_output_loss": True}
    opts = {"error_signal_layer": "both", "loss_wrt_to_act_in": True}
    losses = [_run({"error_signal_layer": name}, fetch=(), bw2=other).losses["output"] for name in ("bw", "bw2")]
    out = _run(opts, bw2=other, both=both, fetch=("bw", "bw2"))
    assert not np.isclose(*losses)
    np.testing.assert_allclose(out.losses["output"], np.dot(weights, losses), rtol=1e-5)
    signal, x = [out.layers[name].value for name in ("bw", "bw2")], _feed()["data"]
    grad = sum(w * x[b, :n].T @ part[b, :n] for w, part in zip(weights, signal) for b, n in enumerate(LENS))
    np.testing.assert_allclose(out.grads["z/W"], grad, rtol=1e-4, atol=1e-5)


def test_no_losses_to_combine() -> None:
    both = {"class": "combine", "kind": "add", "from": ["bw", "p"], "eval_for_output_loss": True}
    with pytest.raises(ConfigError, match=r"Layer 'both' \(class 'combine'\): eval_for_output_loss: no loss .*: p\."):
        _run({"error_signal_layer": "both"}, fetch=(), both=both)


@pytest.mark.parametrize(
    "opts, message",
    [
        ({"align_layer": "p2"}, "Layer 'output': .*the layer 'p2' .* has no loss"),
        (
            {"align_layer": "bw", "loss_wrt_to_act_in": "sigmoid"},
            "is 'sigmoid', but the layer has the activation 'softmax'",
        ),
    ],
)
def test_what_cannot_work(opts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _run(opts, fetch=(), p2=dict(P))
