"""Trainings whose network changes, as a user runs them: going on in the middle, settings of a step, values by epoch."""

from __future__ import annotations

import os
import pathlib
import shutil
from typing import Any

import h5py
import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints
from returnn_tf.engine.learning_rate.file import read_file
from returnn_tf.engine.training.engine import Engine
from tests.run_tasks import run_task

TEXT = """#!returnn
from Pretrain import WrapEpochValue

train = {"class": "Task12AXDataset", "num_seqs": 8}
dev = {"class": "Task12AXDataset", "num_seqs": 3, "fixed_random_seed": 1}
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
seen = []

def scaled(source, self):
    seen.append((self.network.get_config().int("batch_size"), batch_size))
    return self.network.cond_on_train(lambda: source(0) * 1.0, lambda: source(0))

network = {
    "h0": {"class": "rec", "unit": "nativelstm2", "n_out": 5, "from": "data"},
    "h1": {"class": "eval", "eval": scaled, "from": "h0"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "h1"},
}

def construct(idx, net):
    if idx == 2:
        return None
    net["h0"]["n_out"] = 2 + idx
    if idx == 0:
        net["#config"] = {"batch_size": 60, "learning_rate": 0.01}
        net["#info"] = "small batches"
    return net

pretrain = {"construction_algo": construct, "repetitions": {"default": 1, 0: 2}, "copy_param_mode": "subset"}
batch_size = 400
max_seqs = 4
optimizer = {"class": "adam"}
learning_rate = 0.02
learning_rate_file = "newbob.data"
model = "net/network"
tf_log_dir = None
num_epochs = 5
"""


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.config").write_text(TEXT)


def config_with(**changes: Any) -> Config:
    config = Config.from_file("my.config")
    config.update(changes)
    return config


def run(**changes: Any) -> Config:
    config = config_with(**changes)
    assert run_task(config) == 0
    return config


def everything(path: str) -> dict[str, np.ndarray]:
    return {**checkpoint.read(path), **checkpoint.read_state(path)}


@pytest.mark.slow
def test_steps_settings_and_going_on(capsys: pytest.CaptureFixture[str]) -> None:
    config = run()
    names = {epoch: os.path.basename(path) for epoch, path in find_checkpoints("net/network").items()}
    assert names == {i: "network.pretrain.%03i" % i if i < 5 else "network.%03i" % i for i in range(1, 6)}
    text = capsys.readouterr().out
    for expected in (
        "Settings now: batch_size = 60, learning_rate = 0.01\n",
        "start pretrain epoch 2, learning rate 0.01\n",
        "Settings now: those of the config again\n",
        "Now pretrain step 1; parameters: 1 copied, 4 copied in part (h0/rec/W, h0/rec/W_re, h0/rec/b, output/W); "
        "optimizer state: reset\n",
        "start pretrain epoch 3, learning rate 0.02\n",
        "Now pretrain step 2; parameters: ",
        "start pretrain epoch 4, learning rate 0.02\n",
        "start train epoch 5, learning rate 0.02\n",
    ):
        assert expected in text
    # a step is traced once for training and once for scores; the function sees the settings of the step
    assert config.typed("seen") == [(60, 60)] * 2 + [(400, 400)] * 4 and config.int("batch_size") == 400
    steps = [data.error[":meta:epoch_num_train_steps"] for _, data in sorted(read_file("newbob.data").items())]
    assert steps[0] > steps[2] and steps[2] == steps[4]
    shapes = [checkpoint.read("net/" + names[epoch])["h0/rec/W_re"].shape for epoch in (2, 3, 4)]
    assert shapes == [(2, 8), (3, 12), (5, 20)]
    _check_going_on(names)
    _check_other_tasks(names)


def _check_going_on(names: dict[int, str]) -> None:
    """Check that a run from each epoch on ends with the same numbers: within a step, and on the way to the next one."""
    scores = read_file("newbob.data")
    os.rename("net", "whole")
    for last in (1, 2, 3, 4):
        os.makedirs("net")
        for epoch in range(1, last + 1):
            for path in pathlib.Path("whole").glob(names[epoch] + ".*"):
                shutil.copy(path, "net")
        run(learning_rate_file="newbob.%i" % last)
        whole, again = everything("whole/" + names[5]), everything("net/" + names[5])
        assert sorted(whole) == sorted(again)
        for name, value in whole.items():
            np.testing.assert_array_equal(again[name], value, err_msg="from epoch %i: %s" % (last + 1, name))
        assert read_file("newbob.%i" % last)[5].error["dev_score"] == scores[5].error["dev_score"]
        shutil.rmtree("net")
    os.rename("whole", "net")


def _check_other_tasks(names: dict[int, str]) -> None:
    """Check that other tasks build the network of the epoch."""
    for epoch in (2, 3, 5):
        before = read_file("newbob.data")[epoch].error["dev_score"]
        run(task="eval", load_epoch=epoch)
        assert read_file("newbob.data")[epoch].error["dev_score"] == pytest.approx(before, rel=1e-6)
    data = {"class": "Task12AXDataset", "num_seqs": 1}
    run(task="forward", eval=data, load="net/" + names[1], output_file="small.hdf", forward_output_layer="h0")
    run(task="forward", eval=data, load_epoch=5, output_file="large.hdf", forward_output_layer="h0")
    sizes = []
    for name in ("small.hdf", "large.hdf"):
        with h5py.File(name) as file:
            sizes.append(file["inputs"].shape[1])
    assert sizes == [2, 5]


VALUES_BY_EPOCH = """
network["h1"] = {"class": "dropout", "dropout": WrapEpochValue(lambda epoch: 0.0 if epoch < 3 else 0.1), "from": "h0"}
del pretrain
"""


@pytest.mark.slow
def test_values_by_epoch_trace_nothing_anew_while_they_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    path = pathlib.Path("my.config")
    path.write_text(TEXT + VALUES_BY_EPOCH)
    with Engine(config_with(num_epochs=4, model=None, dev=None)) as engine:
        trainers: list[Any] = []
        functions: list[Any] = []
        for epoch in range(1, 5):
            engine.train_epoch(epoch)
            trainers.append(engine.trainer)
            functions.append(engine.trainer.function.graphs)
        assert trainers[0] is trainers[1] and trainers[2] is trainers[3] and trainers[1] is not trainers[2]
        assert functions[0] == functions[1] and len(functions[1]) == 1
        assert engine.trainer.step_count == 4 * trainers[1].step_count / 2


@pytest.mark.slow
def test_other_data_and_settings_of_the_update_keep_the_state_of_the_optimizer() -> None:
    config = config_with(model=None, dev=None, pretrain=None, num_epochs=2)
    network, train = config.typed("network"), config.typed("train")

    def get_network(epoch: int, **_: Any) -> dict[str, Any]:
        return (
            {**network, "#config": {"gradient_clip": 0.1, "train": {**train, "num_seqs": 1}}} if epoch == 2 else network
        )

    config.set("get_network", get_network)
    with Engine(config) as engine:
        engine.train_epoch(1)
        first, net = engine.trainer, engine.net
        state = {name: var.numpy() for name, var in first.state().items()}
        engine.run.current.enter(engine.schedule.at(2))
        assert engine.net is net and engine.trainer is not first
        assert engine.trainer.step_count == first.step_count
        for name, var in engine.trainer.state().items():
            np.testing.assert_array_equal(var.numpy(), state[name])
        assert len(state) > 10
        engine.train_epoch(2)
        steps = [engine.learning_rates.epochs[epoch].error[":meta:epoch_num_train_steps"] for epoch in (1, 2)]
        assert steps[0] > steps[1] == 1


@pytest.mark.slow
def test_parameters_of_another_shape_start_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """With a warning, before the training and by the check, if no copy mode says so."""
    text = TEXT.replace('"copy_param_mode": "subset"', '"copy_param_mode": None')
    pathlib.Path("my.config").write_text(text)
    warning = (
        "From pretrain step 0 to pretrain step 1, parameters with another shape are initialised again: h0/rec/W "
        "([9, 8] -> [9, 12]), h0/rec/W_re ([2, 8] -> [3, 12]), h0/rec/b ([8] -> [12])."
    )
    assert main(["check", "my.config"]) == 0 and warning in capsys.readouterr().out
    run(num_epochs=3)
    out = capsys.readouterr().out
    assert warning in out and out.index(warning) < out.index("start pretrain epoch 1")
    assert "Now pretrain step 1; parameters: 1 copied, 4 reinitialised (h0/rec/W, " in out
    pathlib.Path("my.config").write_text(TEXT.replace('"subset"', '"ifpossible"'))
    assert main(["check", "my.config"]) == 0 and "initialised again" not in capsys.readouterr().out


NOT_TRAINED = """
def get_network(epoch, **_):
    if epoch != 2:
        return {**network, "#finish_all_data": True}
    return {**network, "#trainable": False, "#finish_all_data": True}
del pretrain
"""


@pytest.mark.slow
def test_an_epoch_without_training(capsys: pytest.CaptureFixture[str]) -> None:
    """It goes through the training data like an evaluation, and changes nothing; its network needs no loss."""
    for without_loss in (False, True):
        shutil.rmtree("net", ignore_errors=True)
        text = TEXT + NOT_TRAINED
        if without_loss:
            text = text.replace('"#trainable": False', '"#trainable": False, "output": dict(network["h0"])')
        pathlib.Path("my.config").write_text(text)
        run(num_epochs=3, learning_rate_file="newbob.%s" % without_loss)
        first, second = everything("net/network.001"), everything("net/network.002")
        assert without_loss or sorted(first) == sorted(second)
        for name in () if without_loss else first:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        assert "start train epoch 2 without training ('#trainable' is False)\n" in capsys.readouterr().out
        epochs = read_file("newbob.%s" % without_loss)
        assert ("train_score" in epochs[2].error) is not without_loss
        if without_loss:
            assert not any(key.startswith("dev_") for key in epochs[2].error) and "dev_score" in epochs[3].error
        else:
            assert epochs[2].error["dev_score"] == epochs[1].error["dev_score"] != epochs[3].error["dev_score"]
            assert epochs[3].error[":meta:global_train_step"] == epochs[2].error[":meta:global_train_step"]


ALIGNED = """
import glob

def get_network(epoch, **_):
    if epoch == 1:
        dump = {"class": "hdf_dump", "filename": "of-epoch-1.hdf", "from": "output", "is_output_layer": True}
        return {"output": network["output"] | {"from": "data"}, "dump": dump, "#trainable": False}
    found = glob.glob("of-epoch-*.hdf")
    return {**network, "#config": {"batch_size": 100 if found else 400, "found": found}}
del pretrain
"""


@pytest.mark.slow
def test_a_network_which_depends_on_what_earlier_epochs_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    """The files are complete when the next epoch begins; going on gives the same."""
    pathlib.Path("my.config").write_text(TEXT + ALIGNED)
    config = run(num_epochs=2)
    out = capsys.readouterr().out
    assert "get_network(epoch=2) returns another network, or other settings, than before the training." in out
    assert "Settings now: batch_size = 100, found = ['of-epoch-1.hdf']" in out and "found" not in config
    with h5py.File("of-epoch-1.hdf") as file:
        assert len(file["seqTags"]) > 8  # of the evaluation, too
    whole = everything("net/network.002")
    shutil.rmtree("net")
    os.remove("of-epoch-1.hdf")
    os.remove("newbob.data")
    run(num_epochs=1)
    run(num_epochs=2)
    assert "returns another network" not in capsys.readouterr().out
    again = everything("net/network.002")
    assert sorted(whole) == sorted(again)
    for name, value in whole.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_mistakes_in_late_steps_are_found_before_the_training() -> None:
    text = TEXT.replace('"batch_size": 60', '"batch_size": -3')
    pathlib.Path("my.config").write_text(text)
    with pytest.raises(ConfigError, match="batch_size"):
        run()


def test_check_lists_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "my.config"]) == 0
    text = capsys.readouterr().out
    assert "epochs 1-2: pretrain step 0, 3 layers, " in text and "sets batch_size = 60, learning_rate = 0.01" in text
    assert "epoch 3: pretrain step 1" in text and "\n  parameters: 1 copied, 4 copied in part (" in text
    assert "epochs 4-5: pretrain step 2" in text and "[T|time, B, F|5]" in text
    assert main(["check", "my.config", "++load_epoch", "2"]) == 0
    assert "[T|time, B, F|2]" in capsys.readouterr().out
