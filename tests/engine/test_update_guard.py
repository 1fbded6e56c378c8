"""Steps that are left out: spikes of the loss by each policy, and too many steps in a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.update.update_guard import LossSpikeError, SkippedStepsError, spike_options

SPIKE = {"factor": 5.0, "warmup": 5, "decay": 0.9}


def trainer(**settings: Any) -> StepTrainer:
    layers = {"output": {"class": "linear", "activation": None, "from": "data", "n_out": 1, "loss": "mse"}}
    extern_data = {"data": {"dim": 2}, "classes": {"dim": 1}}
    config = Config({"network": layers, "extern_data": extern_data, "learning_rate": 0.001, **settings})
    return StepTrainer(Network.from_config(config, train=True), config)


def batch(scale: float, frames: int = 6) -> dict[str, np.ndarray]:
    rnd = np.random.RandomState(frames)
    lens = np.array([frames, 2], "int32")
    return {
        "data": rnd.randn(2, frames, 2).astype("float32"),
        "data/size0": lens,
        "classes": (scale * rnd.randn(2, frames, 1)).astype("float32"),
        "classes/size0": lens,
    }


def values(train: StepTrainer) -> dict[str, np.ndarray]:
    return train.net.get_param_values()


def watched(**settings: Any) -> StepTrainer:
    train = trainer(**settings)
    for step in range(12):
        result = train.step(batch(1.0, frames=4 + step % 3))
        assert result.updated and not result.spike
    return train


@pytest.mark.parametrize("measure", ["loss", "grad_norm"])
def test_a_spike_is_left_out_and_counts_as_a_step(measure):
    train = watched(loss_spike={**SPIKE, "measure": measure})
    before = values(train)
    result = train.step(batch(100.0))
    assert result.spike and result.finite and not result.updated
    for name, value in values(train).items():
        np.testing.assert_array_equal(value, before[name])
    assert train.step_count == 13
    assert train.step(batch(1.0)).updated


def test_longer_sequences_are_no_spike():
    assert watched(loss_spike=SPIKE).step(batch(1.0, frames=400)).updated


def test_stop_names_the_step_and_changes_nothing():
    train = watched(loss_spike={**SPIKE, "policy": "stop"})
    before = values(train)
    with pytest.raises(LossSpikeError, match="Step 12: the loss is a spike.*gradient_clip_global_norm"):
        train.step(batch(100.0))
    for name, value in values(train).items():
        np.testing.assert_array_equal(value, before[name])
    assert train.step_count == 12


def test_warn_updates_all_the_same():
    train = watched(loss_spike={**SPIKE, "policy": "warn"})
    before = values(train)
    result = train.step(batch(100.0))
    assert result.spike and result.updated
    assert any(np.any(value != before[name]) for name, value in values(train).items())


def test_a_new_level_of_the_loss_is_followed():
    train = watched(loss_spike=SPIKE)
    left_out = sum(not train.step(batch(3.0)).updated for _ in range(40))
    assert 0 < left_out < 20


@pytest.mark.slow
def test_the_averages_are_part_of_the_state():
    train, other = watched(loss_spike=SPIKE), trainer(loss_spike=SPIKE)
    for name, variable in other.state().items():
        variable.assign(train.state()[name])
    assert other.step(batch(100.0)).spike


def test_nothing_is_watched_by_default():
    train = trainer()
    assert not any("spike" in name for name in train.state())
    assert not train.step(batch(1e6)).spike


def test_too_many_steps_in_a_row():
    train = trainer(stop_on_nonfinite_train_score=False, max_skipped_steps=2)
    for _ in range(2):
        assert not train.step(batch(float("nan"))).updated
    assert train.step(batch(1.0)).updated
    for _ in range(2):
        assert not train.step(batch(float("nan"))).updated
    with pytest.raises(SkippedStepsError, match="Step 5: 3 consecutive steps were skipped.*max_skipped_steps"):
        train.step(batch(float("nan")))


def test_nan_is_not_taken_into_the_averages():
    train = watched(loss_spike=SPIKE, stop_on_nonfinite_train_score=False)
    train.step(batch(float("nan")))
    assert all(np.isfinite(variable.numpy()) for name, variable in train.state().items() if "spike" in name)
    assert train.step(batch(100.0)).spike


@pytest.mark.parametrize(
    "given, message",
    [
        ("yes", "expected True or a dict"),
        ({"facter": 2}, "unknown option 'facter'.*'factor'"),
        ({"policy": "go"}, "option 'policy' is 'go'. Known: .*skip"),
        ({"measure": "x"}, "option 'measure' is 'x'"),
        ({"factor": 0}, "'factor' must be above 0"),
        ({"warmup": True}, "'warmup' must be a whole number, got True"),
        ({"decay": 1.0}, "'decay' must be between 0 and 1"),
    ],
)
def test_wrong_options(given, message):
    with pytest.raises(ConfigError, match=message):
        spike_options(Config({"loss_spike": given}))
