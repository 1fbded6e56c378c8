"""`LossWatch`: a loss worse than without learning is told once; what only fluctuates or grows for a reason is not."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.engine.monitoring.loss_watch import LossWatch
from returnn_tf.engine.support.step_result import StepResult
from tests.engine.test_fit import DEV, SETTINGS, TRAIN

GUESS = math.log(10)


def net_of(guess: Any, *, blank: bool = False, scale: float = 1.0, target: Any = "classes") -> Any:
    loss = SimpleNamespace(uniform_value=lambda node: guess, has_blank=blank, use_normalized_loss=False)
    node = SimpleNamespace(name="output", loss=loss, target=target, scale=scale)
    return SimpleNamespace(plan=SimpleNamespace(losses=[node]))


def warnings_of(net: Any, losses: Any, capsys: pytest.CaptureFixture[str], first_step: int = 0) -> str:
    watch = LossWatch()
    for number, loss in enumerate(losses, first_step):
        counts = 5.0 + number % 3
        result = StepResult(loss, {"output": loss * counts}, counts={"output": counts}, step=number, learning_rate=0.5)
        watch.step(net, result)
    watch.look(0.5, "after epoch 1")
    return capsys.readouterr().out


#: losses of the steps, and whether they are worse than without learning
OF_LABELS = {
    "explodes": ([2.3] + [30.0] * 30, True),
    "explodes in a long epoch": ([2.3] * 40 + [4.0] * 60, True),
    "comes back": ([2.3] + [30.0] * 10 + [2.0] * 40, False),
    "learns": (np.linspace(2.3, 0.1, 50), False),
    "begins far above a guess": (np.linspace(9.0, 5.0, 50), False),
    "stays at a guess": (2.3 + 0.2 * np.sin(np.arange(200)), False),
    "overfits, then gets worse": ([0.01] * 20 + [1.0] * 100, False),
    "too few steps": ([2.3] + [30.0] * 15, False),
}


@pytest.mark.parametrize("case", OF_LABELS)
def test_labels(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    losses, worse = OF_LABELS[case]
    out = warnings_of(net_of(GUESS), losses, capsys)
    assert ("learning_rate is too large (it is 0.5)" in out) == worse, out
    assert out.count("returnn-tf explain learning-rate") == int(worse)


def test_where_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A long epoch is not waited for."""
    out = warnings_of(net_of(GUESS), [2.3] + [30.0] * 500, capsys)
    assert "after 80 steps, the loss of 'output' is 30, more than at the start (2.3) and than with equal" in out


@pytest.mark.parametrize(
    "net, first_step, losses, worse",
    [
        (net_of(None, blank=True), 0, [3.0] + [9.0] * 50, True),
        (net_of(None, blank=True), 0, [3.0] + [5.0] * 50, False),  # longer sequences
        (net_of(None, blank=True), 7, [0.1] + [0.3] * 50, False),  # parameters that are not new
        (net_of(None), 0, [1.0] + [9.0] * 50, False),  # e.g. a regulariser
        (net_of(GUESS, scale=-1.0), 0, [2.3] + [9.0] * 50, False),  # is to become large
        (net_of(GUESS, target=None), 0, [2.3] + [9.0] * 50, False),
    ],
)
def test_other_losses(
    net: Any, first_step: int, losses: list[float], worse: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ("too large" in warnings_of(net, losses, capsys, first_step)) == worse


@pytest.mark.parametrize(
    "options, value",
    [({}, math.log(2)), ({"loss_opts": {"label_smoothing": 0.1}}, math.log(2)),
     ({"loss_opts": {"focal_loss_factor": 2.0}}, None)],
)  # fmt: skip
def test_uniform_value(options: dict[str, Any], value: Any) -> None:
    network = {**SETTINGS["network"], "output": {**SETTINGS["network"]["output"], **options}}
    (node,) = Network.from_config(Config({**SETTINGS, "network": network}), train=True).plan.losses
    assert node.loss.uniform_value(node) == value


@pytest.mark.slow
@pytest.mark.parametrize("rate, told", [(20.0, True), (0.01, False)])
def test_training_tells(rate: float, told: bool, capsys: pytest.CaptureFixture[str]) -> None:
    config = Config({**SETTINGS, "learning_rate": rate, "max_seqs": 1, "batch_size": 100})
    net = returnn_tf.Network.from_config(config, train=True)
    returnn_tf.Trainer(net, config).fit({**TRAIN, "num_seqs": 30}, DEV, epochs=1)
    out = capsys.readouterr().out
    assert ("probably learning_rate is too large (it is %g)" % rate in out) == told, out
