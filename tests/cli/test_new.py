"""`returnn-tf new`: each kind of project checks, learns in a step, and (long) gets good within a minute."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import returnn_tf
from returnn_tf.cli.main import main
from returnn_tf.cli.new import write_project
from returnn_tf.cli.new.kinds import KINDS, ProjectKind
from returnn_tf.config import Config
from returnn_tf.engine.learning_rate.file import read_file

#: kind -> (score of the last epoch, the largest one on dev, what an untrained model gives)
LEARNED = {
    "ctc": ("dev_error", 0.03, 1.0),
    "attention": ("dev_error_output/prob", 0.1, 0.9),
    "transducer": ("dev_error_output/prob", 0.02, 0.2),
    "lm": ("dev_score_output:exp", 4.2, 32),
    "mt": ("dev_error", 0.01, 0.9),
    "hybrid": ("dev_error", 0.02, 0.9),
}
#: kind -> the largest error rate of task search
FOUND = {"ctc": 0.03, "attention": 0.1, "transducer": 0.05, "mt": 0.05}


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a project of each kind, by its name, with little data."""
    folder = tmp_path_factory.mktemp("projects")
    with pytest.MonkeyPatch.context() as patch:
        for kind in KINDS.values():
            patch.setattr(kind.data, "SIZES", {"train": 20, "dev": 5})
            write_project(str(folder / kind.name), kind)
    return folder


def config_of(projects: Path, kind: str) -> str:
    return str(projects / kind / (kind + ".config"))


@pytest.mark.parametrize("kind", KINDS)
def test_checks(kind: str, projects: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to warn of: not in the layers, the settings, the datasets, nor for newer versions."""
    assert main(["check", "--strict", config_of(projects, kind)]) == 0
    captured = capsys.readouterr()
    assert not captured.err and re.search(r"(?m)^output +\w+ +\[", captured.out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["ctc", "lm", "hybrid", *(pytest.param(k, marks=pytest.mark.long) for k in ("attention", "transducer", "mt"))],
)
def test_learns_in_two_steps(kind: str, projects: Path) -> None:
    config = Config.from_file(config_of(projects, kind))
    net = returnn_tf.Network.from_config(config, train=True)
    trainer = returnn_tf.Trainer(net, config)
    dataset = returnn_tf.Dataset.from_config(config.typed("train"))
    batch = next(iter(dataset.batches(epoch=1, batch_size=200, max_seqs=4)))
    losses = [trainer.step(batch.feed, learning_rate=0.01).total_loss for _ in range(3)]
    dataset.close()
    assert losses[2] < losses[0]


def test_data_is_the_same_each_time(tmp_path: Path) -> None:
    """Also when the program in the folder makes it."""
    write_project(str(tmp_path / "x"), KINDS["lm"])
    before = {path.name: path.read_bytes() for path in (tmp_path / "x" / "data").iterdir()}
    runpy.run_path(str(tmp_path / "x" / "make_data.py"), run_name="__main__")
    after = {path.name: path.read_bytes() for path in (tmp_path / "x" / "data").iterdir()}
    assert len(before) == 3 and after == before


def test_tells_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "a/my model", "--kind", "lm"]) == 0
    out = capsys.readouterr().out
    assert "returnn-tf 'a/my model/my model.config'  " in out
    config = Path("a/my model/my model.config").read_text()
    assert "returnn-tf my model.config ++task eval" in config and "NAME.config" not in config


WRONG = [
    (["x", "--kind", "ctx"], 2, "invalid choice: 'ctx'. Did you mean 'ctc'? All options: returnn-tf new --help"),
    (["x"], 2, "the following arguments are required: --kind."),
    (["--kind", "ctc"], 2, "the following arguments are required: NAME."),
    (["there", "--kind", "ctc"], 2, "new: there exists already, and is not overwritten"),
    (["file/x", "--kind", "ctc"], 1, "new: file/x can't be written: "),
    (["/", "--kind", "ctc"], 2, "new: '/' is no name of a folder"),
    (["", "--kind", "ctc"], 2, "new: the name of the folder is empty: ''. Write e.g. returnn-tf new my_model"),
    (["  ", "--kind", "ctc"], 2, "new: the name of the folder is empty: '  '"),
    ([".", "--kind", "ctc"], 2, "new: . exists already"),
    (["file", "--kind", "ctc"], 2, "new: file exists already"),
    (["there/", "--kind", "ctc"], 2, "new: there exists already"),
    (["a\nb", "--kind", "ctc"], 2, "a line break or control character"),
    (["x/my.config", "--kind", "ctc"], 2, "NAME is a folder, in which NAME.config is written. Did you mean 'my'?"),
    (["-x", "--kind", "ctc"], 2, "required: NAME"),
]


@pytest.mark.parametrize("args,code,message", WRONG)
def test_wrong_arguments(
    args: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    Path("file").touch()
    assert main(["new", *args]) == code
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "there"]


def test_nothing_is_left_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: str) -> None:
        Path(folder, "half").touch()
        raise OSError(28, "No space left on device")

    kind = KINDS["lm"]
    monkeypatch.setattr(kind.data, "write", write)
    monkeypatch.setattr(ProjectKind, "make_data", lambda self: "")
    assert main(["new", str(tmp_path / "x"), "--kind", "lm"]) == 1
    assert list(tmp_path.iterdir()) == []


def run(*args: str) -> str:
    """Return the output of the program."""
    done = subprocess.run([sys.executable, "-m", "returnn_tf", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_gets_good(kind: str, tmp_path: Path) -> None:
    """With commands of their own, as a user runs them."""
    config = write_project(str(tmp_path / kind), KINDS[kind])
    run(config)
    epochs = read_file(str(tmp_path / kind / "out" / "learning_rates"))
    key, most, untrained = LEARNED[kind]
    assert epochs[max(epochs)].error[key] <= most < untrained
    output = run(config, *KINDS[kind].after[0].split())
    if kind in FOUND:
        (rate,) = re.findall(r"label errors ([\d.]+)%", output)
        assert float(rate) / 100 <= FOUND[kind]
