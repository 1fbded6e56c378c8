"""Evaluation and forwarding of a model which another program trained: the same numbers as that program wrote."""

from __future__ import annotations

import ast
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.datasets import Dataset
from tests.run_tasks import run_task

DATA = pathlib.Path(__file__).parent.parent / "data"
RUN = DATA / "tasks/reference_run"
SETTINGS: dict[str, Any] = {
    "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}},
    "target": "classes",
    "network": {
        "ctx": {"class": "window", "window_size": 3, "from": "data"},
        "merge": {"class": "merge_dims", "axes": ["stag:window", "F"], "from": "ctx"},
        "hidden": {"class": "linear", "activation": "tanh", "n_out": 6, "from": "merge"},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "hidden"},
    },
    "batch_size": 300,
    "max_seqs": 5,
    "model": "net/network",
    "behavior_version": 21,
}


@pytest.fixture(autouse=True)
def with_the_trained_model(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "engine/foreign_checkpoint", tmp_path / "net")


def run(**changes: Any) -> None:
    assert run_task(Config({**SETTINGS, **changes})) == 0


def test_scores_of_a_dataset() -> None:
    files = [str(RUN / "eval_12ax.hdf")]
    run(task="eval", dev={"class": "HDFDataset", "files": files}, eval_output_file="scores.txt")
    expected = ast.literal_eval((RUN / "eval_out.py.txt").read_text())
    text = pathlib.Path("scores.txt").read_text()
    written = ast.literal_eval(text)
    for kind in ("score", "error"):
        assert written["dev"][kind] == pytest.approx(expected["dev"][kind], rel=1e-5)
    assert [line.split(":")[0] for line in text.splitlines()] == [
        line.split(":")[0] for line in (RUN / "eval_out.py.txt").read_text().splitlines()
    ]


@pytest.mark.parametrize(
    "name, options",
    [
        ("eval_per_seq_default.txt", {}),
        ("eval_per_seq.txt", {"output_per_seq_format": ["seq_tag", "score"]}),
        (
            "eval_per_seq.py.txt",
            {"output_per_seq_format": ["score", "error", "seq_len"], "output_per_seq_file_format": "py"},
        ),
    ],
)
def test_scores_of_each_sequence(name: str, options: dict[str, Any]) -> None:
    dev = {"class": "HDFDataset", "files": [str(RUN / "eval_12ax.hdf")], "seq_ordering": "sorted"}
    run(task="eval", dev=dev, eval_output_file_per_seq="out.txt", loss_name="output", **options)
    got, expected = pathlib.Path("out.txt").read_text(), (RUN / name).read_text()
    if name.endswith(".py.txt"):
        for tag, values in ast.literal_eval(expected).items():
            assert ast.literal_eval(got)[tag] == pytest.approx(values, rel=1e-5)
        assert got.splitlines()[0] == "{" and list(ast.literal_eval(got)) == list(ast.literal_eval(expected))
    else:
        for line, reference in zip(got.splitlines(), expected.splitlines()):
            assert line.split(";")[:-1] == reference.split(";")[:-1]
            assert float(line.split(";")[-1]) == pytest.approx(float(reference.split(";")[-1]), rel=1e-5)
    assert len(got.splitlines()) == len(expected.splitlines())


@pytest.mark.parametrize("fields", [["pos_score"], ["pos_error", "seq_tag"], ["pos_score", "pos_error"]])
@pytest.mark.parametrize("form", ["txt", "py"])
def test_scores_of_each_position(form: str, fields: list[str]) -> None:
    dev = {"class": "HDFDataset", "files": [str(RUN / "eval_12ax.hdf")]}
    options = {"output_per_seq_format": fields, "output_per_seq_file_format": form}
    run(task="eval", dev=dev, eval_output_file_per_seq="out.txt", loss_name="output", **options)
    expected = ast.literal_eval((RUN / "eval_per_seq.py.txt").read_text())
    text = pathlib.Path("out.txt").read_text()
    if form == "py":
        rows = ast.literal_eval(text)
        assert list(rows) == list(expected) and all(list(row) == fields for row in rows.values())
    else:
        lines = [line.split(";") for line in text.splitlines()]
        rows = {tag: dict(zip(fields, line)) for tag, line in zip(expected, lines)}
    for tag, row in rows.items():
        for field in fields:
            if field == "seq_tag":
                assert row[field] == tag
                continue
            values = row[field] if form == "py" else ast.literal_eval(row[field])
            assert len(values) == expected[tag]["seq_len"]
            assert np.mean(values) == pytest.approx(expected[tag][field[len("pos_") :]], rel=1e-5)


MEAN = {"class": "reduce", "mode": "mean", "axes": "T", "from": "output", "loss": "as_is"}


def test_loss_without_positions() -> None:
    dev = {"class": "HDFDataset", "files": [str(RUN / "eval_12ax.hdf")]}
    options = {"network": {**SETTINGS["network"], "mean": MEAN}, "output_per_seq_format": ["pos_score"]}
    with pytest.raises(ConfigError, match="output_per_seq_format: the loss 'as_is' of layer 'mean' has a single value"):
        run(task="eval", dev=dev, eval_output_file_per_seq="out.txt", loss_name="mean", **options)


def test_scores_of_sequences_that_other_tasks_cut_into_chunks() -> None:
    dev = {"class": "HDFDataset", "files": [str(RUN / "eval_12ax.hdf")], "chunking": "20:10"}
    run(task="eval", dev=dev, eval_output_file_per_seq="out.txt", loss_name="output")
    written, expected = pathlib.Path("out.txt").read_text(), (RUN / "eval_per_seq_default.txt").read_text()
    assert [float(line) for line in written.split()] == pytest.approx([float(line) for line in expected.split()], 1e-5)


def test_forwarding() -> None:
    data = {"class": "Task12AXDataset", "num_seqs": 6, "fixed_random_seed": 1}
    run(task="forward", eval=data, max_seqs=3, forward_batch_size=250, load_epoch=12, output_file="out.hdf")
    expected = {seq.tag: seq.data["data"] for seq in Dataset.from_config(str(RUN / "forward.hdf")).sequences()}
    written = {seq.tag: seq.data["data"] for seq in Dataset.from_config("out.hdf").sequences()}
    assert list(written) == list(expected)
    for tag, value in expected.items():
        np.testing.assert_allclose(written[tag], value, rtol=1e-4, atol=1e-6)
