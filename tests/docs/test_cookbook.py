"""The configs of the cookbook: they train, their real sizes can be built, and what the pages say of them is so."""

from __future__ import annotations

import ast
import importlib.util
import pathlib
import re
import shlex
import shutil
from typing import Any

import numpy as np
import pytest

import returnn_tf
from returnn_tf.cli.main import main
from tests.docs.test_snippets import ROOT

COOKBOOK = ROOT / "docs" / "cookbook"
NAMES = sorted(path.stem for path in COOKBOOK.glob("*.config"))
#: Configs that begin with a model of another one.
AFTER = {
    "teacher-student": ("hybrid-blstm", "out/hybrid/net.008"),
    "minimum-risk": ("attention", "out/attention/net.016"),
}
#: Configs whose graphs take several seconds; the long test trains them whole.
SLOW_TO_BUILD = {"minimum-risk": pytest.mark.long}
#: name -> (largest error on dev, number of parameters with real sizes), as the index of the cookbook has them
TABLE = {
    row[0]: (float(row[1]) / 100, row[2])
    for row in re.findall(
        r"^\|.*\(([\w-]+)\.config\)\) .*\| +([\d.]+) % +\| +([\d.]+ M) +\|$",
        (COOKBOOK / "README.md").read_text(encoding="utf8"),
        re.M,
    )
}


@pytest.fixture(scope="module")
def common_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """With the generated data, which all tests read."""
    return tmp_path_factory.mktemp("cookbook")


@pytest.fixture(autouse=True)
def folder(common_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(common_folder)
    monkeypatch.setenv("RETURNN_TF_META_GRAPH", "0")
    shutil.rmtree("out", ignore_errors=True)
    return common_folder


def config_of(name: str) -> str:
    return str(COOKBOOK / (name + ".config"))


def test_index_lists_all() -> None:
    assert sorted(TABLE) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW_TO_BUILD.get(name, ())) for name in NAMES])
def test_trains(name: str, folder: pathlib.Path) -> None:
    """One epoch of one batch, with one block where all blocks are alike: building the graph is what takes time."""
    config = folder / (name + ".config")
    shutil.copy(COOKBOOK / "generated.py", folder)
    for path in COOKBOOK.glob("*.config"):
        (folder / path.name).write_text(with_one_block(path.read_text(encoding="utf8")))
    if name in AFTER:
        first, checkpoint = AFTER[name]
        first_config = returnn_tf.Config.from_file(str(folder / (first + ".config")))
        returnn_tf.save_checkpoint(returnn_tf.Network.from_config(first_config, train=True), checkpoint)
    few = ["++num_epochs", "1", "++max_total_num_seqs", "20", "++max_seqs", "20", "++dev", "None"]
    assert main([str(config), *few]) == 0
    assert list(pathlib.Path("out").glob("*/net.*001.index"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conformer", "ctc"])
def test_a_sequence_alone(name: str, folder: pathlib.Path) -> None:
    """What a sequence gives does not depend on the longest length of its batch, even or odd."""
    shutil.copy(COOKBOOK / "generated.py", folder)
    (folder / "one.config").write_text(with_one_block((COOKBOOK / (name + ".config")).read_text(encoding="utf8")))
    net = returnn_tf.Network.from_config(returnn_tf.Config.from_file("one.config"))
    data = np.random.default_rng(1).normal(size=(4, 37, 20)).astype("float32")
    lens, labels = np.array([33, 34, 36, 37], "int32"), np.ones([4, 2], "int32")
    feed = {"data": data, "data/size0": lens, "classes": labels, "classes/size0": np.full([4], 2, "int32")}
    together = net.run(feed).layers["output"].value
    for row, each in enumerate(lens):
        one = {key: value[row : row + 1] for key, value in feed.items()}
        found = net.run({**one, "data": one["data"][:, :each]}).layers["output"].value[0]
        np.testing.assert_allclose(together[row, : len(found)], found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("function, argument, files", [
    ("speech", ["train"], {"train.hdf"}),
    ("text", ["dev"], {"words.txt", "source.vocab.pkl", "target.vocab.pkl",
                       *(side + name for side in ("source.", "target.") for name in ("train", "dev", "test"))}),
])  # fmt: skip
def test_data_of_two_processes(
    function: str, argument: list[str], files: set[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process generates all while this one is about to write: both have all files, and the same ones."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("generated_twice", COOKBOOK / "generated.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SIZES.update(dict.fromkeys(module.SIZES, 3))
    before: list[str] = []
    writer = module._write_speech if function == "speech" else module._write_translation

    def write(*args: str) -> None:
        if not before:
            before.append(args[0])
            getattr(module, function)(*argument)
            assert {path.name for path in (tmp_path / "generated").iterdir() if path.is_file()} == files
        writer(*args)

    monkeypatch.setattr(module, writer.__name__, write)
    path = getattr(module, function)(*argument)
    assert before and (tmp_path / path).exists()
    assert {path.name for path in (tmp_path / "generated").iterdir()} == files


@pytest.mark.parametrize("name", NAMES)
def test_real_sizes(name: str, folder: pathlib.Path) -> None:
    """A line ``NAME = 3  # real: 5`` has the value for real data behind it."""
    shutil.copy(COOKBOOK / "generated.py", folder)
    for path in COOKBOOK.glob("*.config"):
        (folder / path.name).write_text(with_real_sizes(path.read_text(encoding="utf8")))
    config = returnn_tf.Config.from_file(str(folder / (name + ".config")))
    plan = returnn_tf.Network.plan(config, train=True)
    assert not plan.mistakes
    sizes = [_product(param.shape) for path, param in plan.params.items() if not path.startswith("teacher_")]
    assert "%.1f M" % (sum(sizes) / 1e6) == TABLE[name][1]


def with_one_block(text: str) -> str:
    return text if "SLSTM_AT" in text else re.sub(r"(?m)^NUM_BLOCKS = 2(?= )", "NUM_BLOCKS = 1", text)


def with_real_sizes(text: str) -> str:
    line = r'^(?P<head> *[\w", ]+?(?: = |=|: ))(?P<small>.*?)(?P<comma>,?)  # real: (?P<real>.*)$'
    return re.sub(line, _real, text, flags=re.M)


def _real(match: re.Match[str]) -> str:
    for value in (match["small"], match["real"]):
        ast.parse("x = (%s)" % value)
    return "%s%s%s" % (match["head"], match["real"], match["comma"])


def _product(shape: Any) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "++task search" in (COOKBOOK / (name + ".config")).read_text()]
)
def test_search_can_be_planned(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", config_of(name), "++task", "search", "--no-data"]) == 0
    assert re.search(r"edit_distance on (\w+_)?decision", capsys.readouterr().out)


def commands_of(name: str) -> list[list[str]]:
    """Return the commands at the beginning of a config, with their arguments, without the description."""
    lines = re.findall(r"^# +returnn-tf (.*)$", (COOKBOOK / (name + ".config")).read_text(encoding="utf8"), re.M)
    return [shlex.split(re.split(r" {3,}", line)[0]) for line in lines]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_commands_and_figures(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands_of(name):
        words = [str(COOKBOOK / word) if word.endswith(".config") else word for word in command]
        assert main(words) == 0, capsys.readouterr().err
        print(command)
    found = capsys.readouterr().out
    trained = found.split("task train", 2 if name in AFTER else 1)[-1]
    errors = re.findall(r"^dev: score .*? error (?:(?:\S+ [\d.e-]+ )*?output(?:/prob)? )?([\d.]+)", trained, re.M)
    assert float(errors[-1]) <= TABLE[name][0]
