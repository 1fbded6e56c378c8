"""Running statistics of batch_norm before behavior version 12: every run changes them, batch by batch."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.engine.passes.evaluator import Evaluator
from returnn_tf.engine.passes.forwarder import Forwarder
from returnn_tf.engine.passes.step_trainer import StepTrainer

LENS = np.array([4, 2], "int32")
PREFIX = "n/batch_norm/n_n_output_"
FEEDS = [
    {"data": np.random.RandomState(seed).normal(seed, 2, size=(2, 4, 3)).astype("float32"), "data/size0": LENS}
    for seed in range(3)
]


def _config(**options: Any) -> Config:
    network = {
        "n": {"class": "batch_norm", "from": "data", **options},
        "output": {"class": "eval", "from": "n", "eval": "source(0) ** 2", "loss": "as_is"},
    }
    return Config({"extern_data": {"data": {"dim": 3}}, "network": network, "learning_rate": 0.0})


def _expected(momentum: float = 0.99) -> tuple[list[float], Any, Any]:
    """Return (loss of each batch, mean and variance in the end)."""
    mean, variance, losses = np.zeros(3), np.ones(3), []
    for given in FEEDS:
        x = np.concatenate([given["data"][b, :n] for b, n in enumerate(LENS)]).astype("float64")
        mean, variance = mean + (x.mean(0) - mean) * momentum, variance + (x.var(0) - variance) * momentum
        losses.append((((x - mean) ** 2) / (variance + 1e-3)).sum())
    return losses, mean, variance


def _evaluated(net: Network, config: Config) -> list[float]:
    evaluator = Evaluator(net, config)
    return [evaluator.step(given).losses["output"] for given in FEEDS]


def _forwarded(net: Network, config: Config) -> list[float]:
    forwarder = Forwarder(net, "output")
    values = [forwarder.run(given).value for given in FEEDS]
    return [float(sum(value[b, :n].sum() for b, n in enumerate(LENS))) for value in values]


@pytest.mark.parametrize("run", [_evaluated, _forwarded])
@pytest.mark.parametrize("momentum", [0.99, 0.5])
def test_carried_from_batch_to_batch(run: Callable[[Network, Config], list[float]], momentum: float) -> None:
    config = _config(momentum=momentum)
    net = Network.from_config(config)
    losses, mean, variance = _expected(momentum)
    np.testing.assert_allclose(run(net, config), losses, rtol=1e-4)
    found = {name: value.reshape(-1) for name, value in net.get_param_values().items()}
    np.testing.assert_allclose(found[PREFIX + "mean"], mean, rtol=1e-4)
    np.testing.assert_allclose(found[PREFIX + "variance"], variance, rtol=1e-4)


@pytest.mark.parametrize("run", [_evaluated, _forwarded])
def test_only_training_changes_them_if_so_set(run: Callable[[Network, Config], list[float]]) -> None:
    config = _config(update_sample_only_in_training=True)
    net = Network.from_config(config)
    run(net, config)
    np.testing.assert_array_equal(net.get_param_values()[PREFIX + "mean"].reshape(-1), np.zeros(3))


def test_training_goes_on_with_what_an_evaluation_left() -> None:
    config = _config()
    net = Network.from_config(config, train=True)
    trainer, evaluator = StepTrainer(net, config), Evaluator(net, config)
    trainer.step(FEEDS[0])
    evaluator.step(FEEDS[1])
    trainer.step(FEEDS[2])
    _, mean, variance = _expected()
    found = {name: value.reshape(-1) for name, value in net.get_param_values().items()}
    np.testing.assert_allclose(found[PREFIX + "mean"], mean, rtol=1e-4)
    np.testing.assert_allclose(found[PREFIX + "variance"], variance, rtol=1e-4)
