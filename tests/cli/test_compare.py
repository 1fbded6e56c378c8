"""returnn-tf compare: what it finds of a run, how it tells differences, and what it refuses."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any, Optional

import pytest

from returnn_tf.cli.compare import short_names, table
from returnn_tf.cli.main import main
from returnn_tf.cli.runs.differences import (
    differing_layers,
    differing_settings,
    folder_of_config,
    without_folders,
)
from returnn_tf.cli.runs.run import find_run
from returnn_tf.config import Config
from returnn_tf.engine.learning_rate.file import EpochData, format_epochs, update_file
from returnn_tf.engine.monitoring import run_settings
from returnn_tf.engine.monitoring.status_file import StatusFile

LAYERS: dict[str, Any] = {
    "lstm": {"class": "rec", "unit": "lstm", "n_out": 8, "from": "data"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "lstm"},
}
SETTINGS: dict[str, Any] = {"learning_rate": 0.02, "optimizer": {"class": "adam", "epsilon": 1e-8}, "model": "net"}


def make_run(
    folder: pathlib.Path, scores: list[float], settings: Mapping[str, Any], layers: Optional[Mapping[str, Any]] = None
) -> str:
    """Write what a training leaves of interest here; return the folder of the model."""
    model = folder / "model" / "net"
    model.parent.mkdir(parents=True)
    meta = {":meta:speed:frames_per_second": 1000.0, ":meta:memory:process": 2048, ":meta:epoch_train_time_secs": 61}
    epochs = {n: EpochData(0.1 / n, {"dev_score": score, **meta}) for n, score in enumerate(scores, 1)}
    update_file(str(folder / "rates"), lambda _: epochs)
    StatusFile(str(model)).update(now=True, learning_rate_file=str(folder / "rates"))
    if layers is not None:
        run_settings.write(str(model), run_settings.facts_of(Config(dict(settings)), dict(layers)))
    return str(model.parent)


@pytest.fixture
def two(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Return two runs, the working directory being theirs."""
    monkeypatch.chdir(tmp_path)
    a = make_run(tmp_path / "a", [3.0, 1.5, 2.0], SETTINGS, LAYERS)
    other = {**LAYERS, "lstm": {**LAYERS["lstm"], "n_out": 16}, "more": {"class": "copy", "from": "lstm"}}
    changed = {**SETTINGS, "optimizer": {"class": "adam"}, "max_seqs": 5, "model": "other"}
    return a, make_run(tmp_path / "b", [2.5, 2.25], changed, other)


def test_tables(two: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *two, "--no-plot"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    for row in (
        "dev_score, best 1.5* (2) 2.25 (2)",
        "dev_score, last 2* (3) 2.25 (2)",
        "epochs 3 2",
        "frames per second 1000 1000",
        "time of training 0:03:03 0:02:02",
        "memory 2.0KB 2.0KB",
        "max_seqs - 5",
        "optimizer.epsilon 1e-08 -",
        "lstm: n_out 8 16",
        "more - copy",
    ):
        assert row.split() in rows, row
    first = [row[0] for row in rows if row]
    assert "model" not in first and "learning_rate" not in first and "optimizer.class" not in first


@pytest.mark.slow
@pytest.mark.parametrize("name, magic", [("compare.png", b"\x89PNG"), ("x.svg", b"<?xml")])
def test_picture(two: tuple[str, str], name: str, magic: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """It is drawn once, and replaced only if that is asked for."""
    pytest.importorskip("matplotlib")
    path = pathlib.Path(name)
    options = [] if name == "compare.png" else ["--output", name]
    assert main(["compare", *two, *options]) == 0
    assert path.read_bytes().startswith(magic) and "curves: %s" % name in capsys.readouterr().out
    path.write_text("mine")
    assert main(["compare", *two, *options]) == 2
    assert path.read_text() == "mine" and "--force replaces it" in capsys.readouterr().err
    assert main(["compare", *two, *options, "--force"]) == 0
    assert path.read_bytes().startswith(magic)


def test_forms_of_a_run(two: tuple[str, str]) -> None:
    """The folder, the prefix, the learning-rate file, the status file and a config find the same scores."""
    config = pathlib.Path("a.config")
    config.write_text("model = 'a/model/net'\nnetwork = %r\nlearning_rate = 0.5\n" % LAYERS)
    forms = ["a/model", "a/model/net", "a/rates", "a/model/.net.status.json", "a.config"]
    runs = [find_run(form) for form in forms]
    assert all(sorted(run.scored) == [1, 2, 3] for run in runs)
    assert all(run.facts["network"] == LAYERS for run in runs)
    assert [run.facts["settings"]["learning_rate"] for run in runs] == [0.02] * 4 + [0.5]


def test_older_run_without_record(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The manifest of its checkpoint has the settings, and its learning rates if their file is gone."""
    rates = format_epochs({1: EpochData(0.1, {"train_score": 2.0})})
    for name in ("a", "b"):
        model = pathlib.Path(make_run(tmp_path / name, [1.0], {}, None)) / "net"
        (tmp_path / name / "rates").unlink()
        pathlib.Path("%s.001.index" % model).write_bytes(b"x")
        facts = {"epoch": 1, "step": 1, "random_seed": 1, "files": {}, "learning_rates": rates}
        facts["settings"] = {"max_seqs": "5" if name == "a" else "6", "network": "sha256 1"}
        pathlib.Path("%s.001.manifest.json" % model).write_text(json.dumps(facts))
    assert main(["compare", "x=%s" % (tmp_path / "a/model"), "y=%s" % (tmp_path / "b/model"), "--no-plot"]) == 0
    out = capsys.readouterr().out
    assert "train_score, best  2* (1)  2* (1)" in out and "max_seqs  5  6" in out
    assert "the networks of x: unknown\nthe networks of y: unknown" in out


@pytest.mark.parametrize(
    "runs, code, words",
    [
        (["a/model"], 2, "expected two runs"),
        (["a/model", "gone"], 2, "'gone': there is no such folder, file or prefix"),
        (["a/model", "empty", "gone"], 2, "2 of 3 runs can't be read:\n'empty': a folder without a run"),
        (["a", "b/model"], 2, "Did you mean 'a/model'?"),
        (["a/model/net.003.index", "a/model"], 2, "is one checkpoint. Name the run: a/model/net"),
        (["a/model/net.003", "a/model"], 2, "is one checkpoint. Name the run: a/model/net"),
        (["a/model", "bad"], 1, "learning-rate file bad: line 1"),
        (["a/model", "none.rates"], 1, "none.rates has no scores"),
        (["a/model", "wrong.config"], 2, "wrong.config:1"),
        (["a/model", "new.config"], 1, "was it trained in another folder?"),
        (["a/model", "absolute.config"], 1, "absolute/net does not exist; was it trained yet?"),
        (["x=a/model", "x=b/model"], 2, "two runs have the same name"),
        (["a/model", "b/model", "--outptu", "x"], 2, "Did you mean '--output'?"),
        (["a/model", "b/model", "--no-plot", "--output", "x.png"], 2, "exclude each other"),
    ],
)
def test_refused(
    runs: list[str], code: int, words: str, two: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One message each, and nothing is written."""
    if "--no-plot" not in runs:
        pytest.importorskip("matplotlib")
    pathlib.Path("empty").mkdir()
    pathlib.Path("a/model/net.003.index").touch()
    pathlib.Path("bad").write_text("{1: EpochData(open('x'))}")
    pathlib.Path("none.rates").write_text("{1: EpochData(learningRate=0.1, error={})}")
    pathlib.Path("wrong.config").write_text("model = 1 / 0\n")
    pathlib.Path("new.config").write_text("model = 'net/x'\nnetwork = {}\n")
    pathlib.Path("absolute.config").write_text("model = '/absolute/net'\nnetwork = {}\n")
    assert main(["compare", *runs]) == code
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err
    assert not pathlib.Path("compare.png").exists()


def test_differing_settings() -> None:
    """Entries of dicts one by one; a value that is a dict in one run only as a whole; booleans are no numbers."""
    assert differing_settings([{"a": 1, "b": True}, {"a": 1.0, "b": 1}]) == [("b", ["True", "1"])]
    both = [{"t": {"class": "X", "n": [1]}}, {"t": {"class": "X", "n": [2]}}, {}]
    assert differing_settings(both) == [("t.class", ["X", "X", "-"]), ("t.n", ["[1]", "[2]", "-"])]
    assert differing_settings([{"t": {"a": 1}}, {"t": "x"}]) == [("t", ["{'a': 1}", "x"])]


def test_copies_of_a_project() -> None:
    """Paths inside the folder of each config are no differences; others are."""
    rows = [("HERE", ["/x/a", "/x/b"]), ("f", ["['/x/a/d']", "['/x/b/d']"]), ("g", ["/x/a/d", "/x/b/e"])]
    rows += [("h", ["/x/ab", "/x/bb"]), ("n", ["1", "2"])]
    rest, moved = without_folders(rows, [folder_of_config({"files": [path]}) for path in ("/x/a/c", "/x/b/c")])
    assert moved == ["HERE", "f"] and rest == rows[2:]
    assert without_folders(rows, ["", ""]) == (rows, []) and folder_of_config({}) == ""


def test_differing_layers_of_inner_networks() -> None:
    """Layers within a loop or subnetwork have paths, and their options are compared."""

    def loop(n_out: int, **more: Any) -> dict[str, Any]:
        return {"output": {"class": "rec", "unit": {"s": {"class": "linear", "n_out": n_out}, **more}}}

    rows = differing_layers([loop(3), loop(4), loop(4, t={"class": "copy"})])
    assert rows == [("output/s: n_out", ["3", "4", "4"]), ("output/t", ["-", "-", "copy"])]


def test_names_and_table() -> None:
    assert short_names(["out/a/model", "out/b/model"]) == ["a", "b"]
    assert short_names(["x/model", "x/y/model"]) == ["model", "y/model"]
    assert short_names(["m", "m"]) == ["1 m", "2 m"]
    cut = table(["t", "a"], [("x", ["y" * 100])]).splitlines()[-1]
    assert len(cut) < 60 and cut.endswith("...") and "y" * 100 in table(["t", "a"], [("x", ["y" * 100])], full=True)
