"""tikhonov_regularization and synthetic_gradient: the gradient, and the second update of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.passes.step_trainer import StepTrainer

RATE, SCALE = 0.1, 0.5
LENS = np.array([4, 2], "int32")
FEED = {"data": np.random.RandomState(1).normal(size=(2, 4, 3)).astype("float32"), "data/size0": LENS}
MASK = (np.arange(4) < LENS[:, None]).astype("float32")[..., None]


def _trainer(layers: dict[str, Any], **settings: Any) -> StepTrainer:
    network = {
        "a": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"},
        **layers,
        "output": {"class": "linear", "activation": "sigmoid", "n_out": 2, "from": "s", "loss": "as_is"},
    }
    fixed = {"extern_data": {"data": {"dim": 3}}, "learning_rate": RATE, "behavior_version": 21}
    config = Config({**fixed, "network": network, **settings})
    return StepTrainer(Network.from_config(config, train=True), config)


def _variables(trainer: StepTrainer) -> dict[str, Any]:
    return {name: tf.Variable(value) for name, value in trainer.net.get_param_values().items()}


def _tikhonov(v: dict[str, Any]) -> tuple[Any, Any]:
    """(objective, meta loss)"""
    y = tf.tanh(tf.tensordot(FEED["data"], v["a/W"], 1) + v["a/b"])
    with tf.GradientTape() as tape:
        tape.watch(y)
        loss = tf.reduce_sum(MASK * tf.sigmoid(tf.tensordot(y, v["output/W"], 1) + v["output/b"]))
    return loss, 0.5 * tf.reduce_sum(tape.gradient(loss, y) ** 2)


def test_tikhonov_is_minimised_by_a_second_update() -> None:
    trainer = _trainer({"s": {"class": "tikhonov_regularization", "meta_loss_scale": SCALE, "from": "a"}})
    v = _variables(trainer)
    with tf.GradientTape(persistent=True) as tape:
        loss, meta = _tikhonov(v)
        scaled = SCALE * meta
    for name in ("a/W", "a/b", "output/W", "output/b"):
        first, second = (tape.gradient(x, v[name]) for x in (loss, scaled))
        v[name].assign_sub(RATE * (first + second))
    result = trainer.step(FEED)
    assert result.total_loss == pytest.approx(float(loss), rel=1e-5)
    assert result.losses["s/tikhonov_reg"] == pytest.approx(float(meta), rel=1e-4)
    assert result.counts["s/tikhonov_reg"] == 2 * 4 * 3
    for name, value in trainer.net.get_param_values().items():
        np.testing.assert_allclose(value, v[name], rtol=1e-4, atol=1e-6)


def test_synthetic_gradients_learn_to_be_the_true_ones() -> None:
    guess = {"class": "linear", "activation": None, "n_out": 3, "from": "a"}
    layer = {"class": "synthetic_gradient", "gradient": "g", "meta_loss_scale": SCALE, "from": "a"}
    trainer = _trainer({"g": guess, "s": layer})
    before = trainer.net.get_param_values()
    y = np.tanh(FEED["data"] @ before["a/W"] + before["a/b"])
    p = 1 / (1 + np.exp(-(y @ before["output/W"] + before["output/b"])))
    true = (MASK * p * (1 - p)) @ before["output/W"].T
    predicted = y @ before["g/W"] + before["g/b"]
    result = trainer.step(FEED)
    assert result.losses["s/synthetic_grad"] == pytest.approx(((predicted - true) ** 2).mean(), rel=1e-4)
    after = trainer.net.get_param_values()
    change = -RATE * SCALE * np.einsum("bti,btj->ij", y, 2 * (predicted - true) / true.size)
    np.testing.assert_allclose(after["g/W"] - before["g/W"], change, rtol=1e-2, atol=1e-6)
    values = [trainer.step(FEED).losses["s/synthetic_grad"] for _ in range(30)]
    assert values[-1] < 0.5 * result.losses["s/synthetic_grad"]


def test_the_second_update_counts_as_an_update_of_the_optimizer() -> None:
    layer = {"class": "tikhonov_regularization", "from": "a"}
    trainer = _trainer({"s": layer}, optimizer={"class": "adam"})
    trainer.step(FEED)
    assert trainer.state()["optimizer_0/iterations"].numpy() == 2


def test_no_second_update_outside_of_training() -> None:
    trainer = _trainer({"s": {"class": "tikhonov_regularization", "from": "a"}})
    out = trainer.net.run(FEED, train=False)
    assert set(out.losses) == {"output"}
    np.testing.assert_array_equal(*(out.layers[n].value for n in ("output", "output")))


@pytest.mark.parametrize(
    "layer,message",
    [
        ({"class": "tikhonov_regularization", "from": "i"}, "has no gradient"),
        ({"class": "synthetic_gradient", "from": "a"}, "gradient"),
        ({"class": "synthetic_gradient", "gradient": "r", "from": "a"}, "must have the axes and the dtype"),
        ({"class": "synthetic_gradient", "gradient": "nothing", "from": "a"}, "no layer 'nothing'"),
        ({"class": "tikhonov_regularization", "meta_loss_scale": "x", "from": "a"}, "meta_loss_scale"),
    ],
)
def test_mistakes(layer: dict[str, Any], message: str) -> None:
    others = {
        "i": {"class": "cast", "dtype": "int32", "from": "a"},
        "r": {"class": "reduce", "mode": "sum", "axis": "T", "from": "a"},
    }
    with pytest.raises(ConfigError, match=r"Layer 's' .*" + message):
        _trainer({**others, "s": layer})


def test_not_step_by_step_in_a_loop() -> None:
    unit = {
        "t": {"class": "tikhonov_regularization", "from": "prev:output"},
        "output": {"class": "combine", "kind": "add", "from": ["t", "data:source"]},
    }
    with pytest.raises(ConfigError, match="can't run step by step in a loop"):
        _trainer({"s": {"class": "rec", "from": "a", "unit": unit}})


def test_not_with_small_gradients_that_vanish() -> None:
    """Losses on gradients have no loss scaling, so float16 is refused before a step."""
    layer = {"class": "tikhonov_regularization", "from": "a"}
    with pytest.raises(ConfigError, match="Layer 's': losses on gradients need .*mixed_precision is 'float16'"):
        _trainer({"s": layer}, mixed_precision="float16")
    _trainer({"s": layer}, mixed_precision="bfloat16")
