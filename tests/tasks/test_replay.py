"""What a failed step leaves behind, and task ``replay``, which does it once more."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.engine.monitoring import reproducer
from returnn_tf.engine.support.nonfinite import NonFiniteError
from tests.run_tasks import run_task

BAD_STEP = 2


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config(**changes: Any) -> Config:
    """Return a config with which sequence 2 makes the layer "log" NaN: the logarithm of a negative number."""
    data = [{"data": np.full([4, 3], 1.0 + index, "float32"), "classes": np.array([0, 1, 0, 1])} for index in range(4)]
    data[BAD_STEP]["data"][1, 2] = -5.0
    settings: dict[str, Any] = {
        "train": Dataset.from_config({"class": "StaticDataset", "data": data, "seq_ordering": "default"}),
        "extern_data": {"data": {"dim": 3}, "classes": {"dim": 2, "sparse": True}},
        "network": {
            "log": {"class": "activation", "activation": "log", "from": "data"},
            "hidden": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "log", "dropout": 0.2},
            "output": {"class": "softmax", "loss": "ce", "from": "hidden"},
        },
        "batch_size": 10,
        "max_seqs": 1,
        "num_epochs": 1,
        "save_epoch1_initial_model": True,
        "learning_rate": 0.01,
        "model": "net/m",
    }
    return Config({**settings, **changes})


def failed(**changes: Any) -> str:
    with pytest.raises(NonFiniteError):
        run_task(config(**changes))
    return "net/m.failure-%06i" % BAD_STEP


@pytest.mark.slow
def test_a_failed_step_can_be_done_again(capsys):
    folder = failed()
    failure, feed = reproducer.load(folder)
    assert (failure.step, failure.epoch, failure.layer, failure.seq_tags) == (BAD_STEP, 1, "log", ["seq-2"])
    assert failure.params["output/W"]["shape"] == [4, 2] and not failure.params["output/W"]["not_finite"]
    assert feed["data"].shape == (1, 4, 3) and feed["data"][0, 1, 2] == -5.0
    assert "++task replay ++failure %s" % folder in capsys.readouterr().out
    assert run_task(config(task="replay", failure=folder)) == 1
    assert "First value with NaN or Inf: layer log" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_can_be_pasted_where_paths_have_blanks(capsys):
    failed(model="my net/m", failure_params=False)
    assert "returnn-tf CONFIG ++task replay ++failure 'my net/m.failure-%06i'" % BAD_STEP in capsys.readouterr().out


@pytest.mark.slow
def test_without_parameters_those_of_the_checkpoint_are_taken(capsys):
    folder = failed(failure_params=False)
    assert sorted(os.listdir(folder)) == ["batch.npz", "failure.json"]
    with np.load(os.path.join(folder, "batch.npz")) as archive:
        good = dict(archive)
    np.savez(os.path.join(folder, "batch.npz"), **{**good, "data": np.abs(good["data"])})
    assert run_task(config(task="replay", failure=folder, load="net/m.000")) == 0
    text = capsys.readouterr().out
    assert "There is no NaN. The parameters were not kept" in text
    assert "gradient output/W" in text


def test_only_the_newest_failures_are_kept(tmp_path):
    failure = reproducer.Failure("error", 0, 1, [], None, {})
    for step in range(6):
        folder = reproducer.folder_of(str(tmp_path / "m"), step)
        assert reproducer.save(folder, failure, {"data": np.zeros(2)})
        os.utime(folder, (step, step))
    assert sorted(os.listdir(tmp_path)) == ["m.failure-%06i" % step for step in (3, 4, 5)]


@pytest.mark.slow
def test_that_nothing_can_be_written_does_not_hide_the_failure(capsys):
    pathlib.Path("net").mkdir()
    pathlib.Path("net/m.failure-%06i" % BAD_STEP).write_text("a file in the way")
    with pytest.raises(NonFiniteError):
        run_task(config())
    assert "The batch of the failed step can't be kept" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "no json", "list", "pickle", "cut"])
def test_a_damaged_folder_is_one_clear_error(damage):
    folder = pathlib.Path(failed())
    if damage == "missing":
        folder = folder / "x"
    elif damage in ("no json", "list"):
        (folder / "failure.json").write_text({"no json": "{", "list": "[1]"}[damage])
    elif damage == "pickle":
        np.savez(folder / "batch.npz", data=np.array([{}], dtype=object))
    else:
        content = (folder / "batch.npz").read_bytes()
        (folder / "batch.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="is not the folder of a failed step"):
        run_task(config(task="replay", failure=str(folder)))


def test_replay_needs_a_folder():
    with pytest.raises(ConfigError, match="\\+\\+failure"):
        run_task(config(task="replay"))


@pytest.mark.slow
def test_facts_are_plain_json():
    with open(os.path.join(failed(), "failure.json"), encoding="utf8") as file:
        assert json.load(file)["seq_tags"] == ["seq-2"]


@pytest.mark.parametrize(
    "option, message",
    [
        ("debug_add_check_numerics_ops", "Layer 'log' .class 'activation'.: NaN in its output"),
        ("debug_add_check_numerics_on_output", "Layer 'output' .class 'softmax'.: NaN in its output"),
    ],
)
def test_numerics_are_checked_where_they_arise(option, message):
    with pytest.raises(DataError, match=message + "(.|\n)*seq-2"):
        run_task(config(**{option: True}))
    assert os.path.exists("net/m.failure-%06i/batch.npz" % BAD_STEP)


def test_gradients_are_checked_by_parameter():
    """The square root has a finite value at 0, but no finite slope."""
    network = {
        "scaled": {"class": "linear", "activation": None, "with_bias": False, "n_out": 2, "from": "data",
                   "forward_weights_init": 0.0},
        "output": {"class": "activation", "activation": "sqrt", "from": "scaled", "loss": "mse", "target": "data2"},
    }  # fmt: skip
    data = [{"data": np.ones([2, 3], "float32"), "data2": np.ones([2, 2], "float32")}]
    changes = {
        "train": Dataset.from_config({"class": "StaticDataset", "data": data}),
        "extern_data": {"data": {"dim": 3}, "data2": {"dim": 2}},
        "network": network,
    }
    with pytest.raises(DataError, match="NaN or Inf in the gradient of parameter 'scaled/W'"):
        run_task(config(debug_add_check_numerics_ops=True, **changes))
