"""``returnn-tf native build --for``: the ops that the graphs of a config need."""

from __future__ import annotations

from pathlib import Path

import pytest

from returnn_tf.cli.main import main
from returnn_tf.native import library

CONFIG = """
extern_data = {"data": {"dim": 3}, "classes": {"dim": 4, "sparse": True}}
task, num_epochs, train = "train", 1, {"class": "Task12AXDataset", "num_seqs": 2}
network = {
    "lstm": {"class": "rec", "unit": "nativelstm2", "n_out": 2, "from": "data"},
    "output": {"class": "softmax", "loss": "ce", "from": "lstm"},
}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a config, in a process that has used no native op."""
    monkeypatch.setattr(library, "_loaded", {})
    path = tmp_path / "my.config"
    path.write_text(CONFIG)
    return str(path)


def test_build_for_a_training(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["native", "build", "--for", config]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ready: lstm"


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "name a config"),
        (["no.config"], "no.config"),
        (["++task", "search"], "does not search"),
        (["++network", "{'output': {'class': 'lstm'}}"], "lstm"),
    ],
)
def test_build_for_what_is_wrong(
    config: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    args = words if words[:1] in ([], ["no.config"]) else [config, *words]
    assert main(["native", "build", "--for", *args]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_build_for_without_native_ops(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(library.SWITCH, "0")
    assert main(["native", "build", "--for", config]) == 2
    assert "native ops are switched off: RETURNN_TF_NATIVE=0" in capsys.readouterr().err


def test_build_for_an_op_that_fails(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "_loaded", {"lstm": None})
    assert main(["native", "build", "--for", config]) == 1
    assert "lstm can't be used here" in capsys.readouterr().err


def test_build_for_ops_without_kernels_here(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a GPU, those that are for CPUs."""
    monkeypatch.setattr(library, "_has_kernels", lambda name: False)
    assert main(["native", "build", "--for", config]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ready: no native op is needed"
