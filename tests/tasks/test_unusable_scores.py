"""NaN in the data of an evaluation: named once per pass, decays the rate, and fails the task whose result it is."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import Config, DataError
from returnn_tf.engine.checkpoints.selection import find_checkpoints
from returnn_tf.engine.learning_rate.file import read_file
from tests.run_tasks import run_task


def dataset(frames: int = 4, *, nan_in: int = -1) -> dict[str, Any]:
    seqs = [{"data": np.ones((frames, 3), "float32"), "classes": np.zeros(frames, "int32")} for _ in range(4)]
    if nan_in >= 0:
        seqs[nan_in]["data"][1, 2] = np.nan
    return {"class": "StaticDataset", "data": seqs, "output_dim": {"data": (3, 2), "classes": (2, 1)}}


def run(**changes: Any) -> int:
    network = {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}}
    settings: dict[str, Any] = {
        "train": dataset(),
        "extern_data": {"data": {"dim": 3}, "classes": {"dim": 2, "sparse": True}},
        "network": network,
        "batch_size": 100,
        "max_seqs": 2,
        "learning_rate": 0.1,
        "learning_rate_control": "newbob_rel",
        "learning_rate_file": "rates",
        "model": "net/m",
        "num_epochs": 3,
    }
    return run_task(Config({**settings, **changes}))


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def warnings_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if "Warning" in line]


def test_a_nan_in_dev_is_named_once_per_epoch_and_decays_the_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(dev=dataset(nan_in=2)) == 0
    lines = warnings_of(capsys)
    assert len(lines) == 3
    assert "'dev' eval epoch 1: cost:output is nan" in lines[0] and "in 1 of 2 batches" in lines[0]
    assert lines[0].endswith("The data itself has NaN or Inf: 'data' of seq-2")
    assert [data.learning_rate for _, data in sorted(read_file("rates").items())] == [0.1, 0.1, 0.05]


def test_a_loss_that_is_infinite_by_itself_names_the_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    huge = dataset()
    huge["data"][1]["data"][:] = 3e38
    run(dev=huge, num_epochs=1, max_seqs=1)
    (line,) = warnings_of(capsys)
    assert "in 1 of 4 batches" in line and line.endswith("The data itself is finite. Sequences: seq-1")


def test_task_eval_fails_after_its_files_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    run(num_epochs=1)
    with pytest.raises(DataError, match="dataset 'dev': cost:output is nan"):
        run(task="eval", load_epoch=1, dev=dataset(nan_in=0), eval_output_file="scores")
    assert "nan" in pathlib.Path("scores").read_text()


@pytest.mark.parametrize("name", ["train", "dev"])
def test_a_dataset_of_empty_sequences_is_an_error(name: str) -> None:
    with pytest.raises(DataError, match=r"epoch 1: all sequences are empty, so there is no score"):
        run(**{name: dataset(frames=0)})
    assert sorted(find_checkpoints("net/m")) == ([] if name == "train" else [1])
