"""Settings of the course of a training: the best model, resets of the optimizer, a dry run, no epochs at all."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import Config
from returnn_tf.datasets.config import batch_options_from_config
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.learning_rate.file import read_file
from returnn_tf.engine.training.engine import Engine
from tests.run_tasks import run_task

OUTPUT = {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}
SETTINGS: dict[str, Any] = {
    "train": {"class": "Task12AXDataset", "num_seqs": 6},
    "dev": {"class": "Task12AXDataset", "num_seqs": 2, "fixed_random_seed": 1},
    "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}},
    "network": {"output": OUTPUT},
    "batch_size": 200,
    "optimizer": {"class": "adam"},
    "learning_rates": [0.05, 20.0, 0.0],  # the second epoch makes the model worse, the third leaves it as it is
    "learning_rate_file": "newbob.data",
    "model": "net/network",
    "tf_log_dir": None,
    "num_epochs": 3,
    "in_python": lambda: None,  # so that the data is loaded in this process
}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(**changes: Any) -> None:
    assert run_task(Config({**SETTINGS, **changes})) == 0


def everything(epoch: int) -> dict[str, np.ndarray]:
    prefix = "net/network.%03i" % epoch
    return {**checkpoint.read(prefix), **checkpoint.read_state(prefix)}


@pytest.mark.parametrize(
    "options, begins_with",
    [
        (True, 1),
        ({}, 1),
        ({"modulo": 3}, 1),
        ({"only_last_n": 1}, 1),
        (None, 2),
        (False, 2),
        ({"modulo": 2}, 2),
        ({"only_last_n": 0}, 2),
        ({"only_last_epochs": 0}, 2),
        ({"first_epoch": 2}, 2),
        ({"min_score_dist": 1e9}, 2),
        ({"filter_score": 1e-9}, 2),
    ],
)
def test_an_epoch_begins_with_the_best_model(
    options: Any, begins_with: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run(use_last_best_model=options)
    epochs = {epoch: everything(epoch) for epoch in (1, 2, 3)}
    for name in ("output/W", "output/b"):
        np.testing.assert_array_equal(epochs[3][name], epochs[begins_with][name])
    steps = [data.error[":meta:epoch_num_train_steps"] for _, data in sorted(read_file("newbob.data").items())]
    assert epochs[3]["global_step"] == sum(steps)  # the step goes on
    assert epochs[3]["optimizer_0/iterations"] == steps[2] + epochs[begins_with]["optimizer_0/iterations"]
    told = "Epoch 3 begins with the model of epoch 1, the best one: net/network.001\n"
    assert (told in capsys.readouterr().out) is (begins_with == 1)


@pytest.mark.slow
def test_the_best_model_after_an_interruption() -> None:
    """The decision is taken again with the scores in the learning-rate file."""
    run(use_last_best_model=True)
    whole = everything(3)
    os.rename("net", "whole")
    os.remove("newbob.data")
    run(use_last_best_model=True, num_epochs=2)
    run(use_last_best_model=True)
    again = everything(3)
    assert sorted(whole) == sorted(again)
    for name, value in whole.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


@pytest.mark.slow
def test_the_best_model_is_gone_or_has_another_network(capsys: pytest.CaptureFixture[str]) -> None:
    run(use_last_best_model=True, save_interval=2)
    out = capsys.readouterr().out
    assert "epoch 3 should begin with the model of epoch 1, but its checkpoint is not there" in out

    def get_network(epoch: int) -> dict[str, Any]:
        hidden = {"class": "linear", "n_out": 3, "from": "data"}
        return {"output": OUTPUT} if epoch == 1 else {"hidden": hidden, "output": {**OUTPUT, "from": "hidden"}}

    os.remove("newbob.data")
    run(use_last_best_model=True, network=None, get_network=get_network, model="other/network")
    assert "begins with the model" not in capsys.readouterr().out


@pytest.mark.parametrize("every, left", [(0, [5, 10]), (1, [1, 1]), (2, [1, 1]), (3, [2, 2]), (100, [5, 5])])
def test_the_optimizer_is_reset_before_every_nth_step_of_an_epoch(every: int, left: list[int]) -> None:
    """An epoch has five steps; the first of each counts as well."""
    one = {"class": "Task12AXDataset", "num_seqs": 5}
    run(train=one, max_seqs=1, reset_updater_vars_mod_step=every, num_epochs=2, learning_rates=None, dev=None)
    states = [everything(epoch) for epoch in (1, 2)]
    assert [int(state["optimizer_0/iterations"]) for state in states] == left
    assert [int(state["global_step"]) for state in states] == [5, 10]


def test_a_reset_gives_the_state_its_initial_values() -> None:
    """Accumulated gradients count, too; numbers of steps within the epoch decide when going on in the middle."""
    settings = {"accum_grad_multiple_step": 3, "reset_updater_vars_mod_step": 2, "optimizer": {"class": "rmsprop"}}
    with Engine(Config({**SETTINGS, **settings, "model": None, "learning_rate_file": None})) as engine:
        updater = engine.trainer.updater
        initial = {name: var.numpy() for name, var in updater.state().items()}
        assert any("accum_grad" in name for name in initial) and any(value.any() for value in initial.values())
        for var in updater.state().values():
            var.assign(var + 7)
        assert not updater.reset_before(3)
        assert all((var.numpy() != initial[name]).all() for name, var in updater.state().items())
        assert updater.reset_before(4)
        for name, var in updater.state().items():
            np.testing.assert_array_equal(var.numpy(), initial[name], err_msg=name)


def test_a_dry_run_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run(dry_run=True, num_epochs=1, tf_log_dir="events", learning_rates=None)
    out = capsys.readouterr().out
    assert os.listdir(".") == [] and "dry_run is set: the training writes no checkpoints" in out
    assert "epoch 1 score: " in out and "dev: score" in out


@pytest.mark.slow
def test_a_dry_run_goes_on_from_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    run(num_epochs=1)
    before = {path: path.read_bytes() for path in pathlib.Path(".").rglob("*") if path.is_file()}
    run(num_epochs=2, dry_run=True)
    out = capsys.readouterr().out
    assert "Loaded net/network.001\n" in out and "epoch 2 score: " in out
    assert before == {path: path.read_bytes() for path in pathlib.Path(".").rglob("*") if path.is_file()}


def test_no_epoch_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    """As a config that is only there for other tasks has it."""
    run(num_epochs=0)
    assert "All 0 epochs are done; there is nothing to train." in capsys.readouterr().out
    run(num_epochs=0, network=None, get_network=lambda epoch: {"output": {**OUTPUT, "L2": 0.1 / epoch}})
    assert not os.path.exists("newbob.data")


@pytest.mark.parametrize(
    "drop, every, expected",
    [
        (0.3, 2, [0.3] * 6),
        (0.9, 10, [0.9] * 6),
        (0.9, 2, [0.9, 0.45, 0.45, 0.45, 0.45, 0.45]),
        (0.5, 1, [0.5] * 6),
        (1.0, 3, [1.0, 1.0, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_seq_drop_is_halved(drop: float, every: int, expected: list[float]) -> None:
    config = Config({"seq_drop": drop, "seq_drop_freq": every})
    options = [batch_options_from_config(config, train=True, epoch=epoch) for epoch in range(1, 7)]
    assert [some["seq_drop"] for some in options] == expected
    assert "seq_drop" not in batch_options_from_config(config, train=False, epoch=4)


@pytest.mark.slow
def test_limits_of_keys_that_the_data_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    """They have no effect, which is told once for each dataset; the limits of other keys count."""
    limits = {"max_seq_length": {"bpe": 75, "data": 60}, "batch_size": {"data": 300, "bpe": 3}}
    run(**limits, num_epochs=2, learning_rates=None)
    out = capsys.readouterr().out
    assert out.count("max_seq_length of key 'bpe' has no effect: the dataset 'train' has no such key.") == 1
    assert out.count("batch_size of key 'bpe' has no effect: the dataset 'dev' has no such key.") == 1
    first = read_file("newbob.data")
    os.remove("newbob.data")
    run(max_seq_length={"data": 60}, batch_size={"data": 300}, num_epochs=2, learning_rates=None, model="b/network")
    assert [data.error["train_score"] for data in first.values()] == [
        data.error["train_score"] for data in read_file("newbob.data").values()
    ]
