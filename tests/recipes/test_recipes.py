"""The recipes: whole ones can be built and fit in memory, small ones train and search on miniature corpora."""

from __future__ import annotations

import json
import pathlib
import re
import runpy
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from tests.recipes import miniature

ROOT = pathlib.Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
SMALL_TRAINING = {
    r"partition_epoch=\d+": "partition_epoch=1",
    r"NUM_EPOCHS = \d+": "NUM_EPOCHS = 1",
    r"NUM_LAYERS = 6": "NUM_LAYERS = 2",
    r"NUM_CELLS = \d+": "NUM_CELLS = 8",
    r"(DECODER|ATTENTION|EMBEDDING)_DIM = \d+": r"\1_DIM = 8",
}
SMALL_PIECES = {
    r"NUM_LABELS = 1000": "NUM_LABELS = 40",
    r"--size 1000": "--size 40",
    r"EPOCHS_PER_STEP = 5": "EPOCHS_PER_STEP = 1",
    r"POOLING = \[3, 2, 1, 1, 1, 1\]": "POOLING = [2, 1]",
}
SMALL_SPEECH = {
    **SMALL_TRAINING,
    **SMALL_PIECES,
    r"LM_DIM = 2048": "LM_DIM = 16",
    r"LM_LAYERS = 2": "LM_LAYERS = 1",
    r"LM_EMBEDDING = 512": "LM_EMBEDDING = 8",
}
SMALL_TRANSDUCER = {
    r"accum_grad_multiple_step = \d": "accum_grad_multiple_step = 1",
    r"(HISTORY|JOINT)_DIM = \d+": r"\1_DIM = 8",
}
SMALL_CONFORMER = {r"NUM_BLOCKS = 12": "NUM_BLOCKS = 1", r"DIM = 512": "DIM = 16", r"HEADS = 8": "HEADS = 2"}
#: recipe -> how its corpus is made, and what is small: pattern in its files -> what stands there instead
SMALL: dict[str, tuple[Any, dict[str, str]]] = {
    "librispeech": (miniature.librispeech, {**SMALL_SPEECH, **SMALL_TRANSDUCER, **SMALL_CONFORMER}),
    "switchboard": (
        miniature.switchboard,
        {
            **SMALL_TRAINING,
            **SMALL_PIECES,
            **SMALL_TRANSDUCER,
            r"NUM_LABELS = 9001": "NUM_LABELS = 12",
            r"--labels 9001": "--labels 12",
            r"EPOCHS_PER_STEP = 3": "EPOCHS_PER_STEP = 1",
        },
    ),
    "tedlium2": (miniature.tedlium2, SMALL_SPEECH),
    "wmt17-de-en": (
        miniature.wmt17,
        {
            **SMALL_TRAINING,
            r"NUM_LABELS = 20000": "NUM_LABELS = 60",
            r"--size 20000": "--size 60",
            r"EPOCHS_PER_STEP = 2": "EPOCHS_PER_STEP = 1",
        },
    ),
}


def forget_modules() -> None:
    """Forget the modules beside the configs: those of copies and of other recipes have the same names."""
    for path in RECIPES.glob("*/*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which configs add their folders
    yield
    forget_modules()


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function: the folder of a recipe in a copy of all, with small sizes and a miniature corpus."""
    copies = tmp_path_factory.mktemp("recipes")

    def of(recipe: str) -> pathlib.Path:
        folder = copies / recipe
        if not folder.exists():
            make_corpus, changes = SMALL[recipe]
            folder.mkdir()
            make_corpus(folder)
            for path in (RECIPES / recipe).iterdir():
                if path.suffix in (".py", ".config", ".md"):
                    (folder / path.name).write_text(changed(path.read_text(encoding="utf8"), changes), encoding="utf8")
        return folder

    return of


def changed(text: str, changes: Mapping[str, str]) -> str:
    for pattern, new in changes.items():
        text = re.sub(r"(?<!\w)" + pattern + r"(?!\w)", new, text)
    return text


@pytest.mark.parametrize("recipe", SMALL)
def test_what_is_made_small_is_there(recipe: str) -> None:
    texts = "".join(path.read_text(encoding="utf8") for path in (RECIPES / recipe).glob("*.*"))
    assert [pattern for pattern in SMALL[recipe][1] if changed(texts, {pattern: "<other>"}) == texts] == []


def commands_of(recipe: str, folder: pathlib.Path) -> list[list[str]]:
    """Return the commands of a page, in their order, as words."""
    blocks = re.findall(r"^```\n(.*?)^```", (folder / "README.md").read_text(encoding="utf8"), re.M | re.S)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SMALL)
def test_commands_of_the_page(recipe: str, folder_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They prepare a miniature corpus, train on it for an epoch, and search."""
    folder = folder_of(recipe)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RETURNN_TF_META_GRAPH", "0")
    commands = commands_of(recipe, folder)
    for line in commands:
        words = [*line]
        forget_modules()
        with monkeypatch.context() as patch:
            while "=" in words[0]:
                name, _, value = words.pop(0).partition("=")
                patch.setenv(name, value)
            program, *arguments = words
            if program == "returnn-tf":
                assert main(arguments) == 0, words
            else:
                assert program == "python"
                patch.setattr(sys, "argv", arguments)
                assert exit_code_of(arguments[0]) == 0, words
    trained = [words[1][: -len(".config")] for words in commands if words[0] == "returnn-tf" and len(words) == 2]
    assert trained
    for name in trained:
        assert list((folder / "out" / name).glob("net*.001.index")), name
    for path in folder.glob("out/*/*.tsv"):
        assert path.read_text(encoding="utf8").count("\t") >= 2


def exit_code_of(script: str) -> int:
    """Run a script of a recipe, and return its exit code."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    return 0


CONFIGS = sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.glob("*/*.config"))
#: config -> (parameters, length of a sequence, memory of a step with such sequences), as in the index
TABLE = {
    row[0]: row[1:]
    for row in re.findall(
        r"^\| ([\w/-]+) \| +([\d.]+ M) \| +(\d+) \| +(\d+ GB) \|",
        (RECIPES / "README.md").read_text(encoding="utf8"),
        re.M,
    )
}


#: Searches with a language model, which train nothing.
SEARCHES = [name for name in CONFIGS if name.endswith("-lm")]


def test_the_index_has_all() -> None:
    assert set(TABLE) == set(CONFIGS) - set(SEARCHES)
    assert set(SMALL) == {name.partition("/")[0] for name in CONFIGS}


@pytest.mark.parametrize("name", sorted(TABLE))
def test_real_sizes(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole network can be built; parameters and memory are those of the index."""
    recipe, _, config = name.partition("/")
    monkeypatch.chdir(RECIPES / recipe)
    assert main(["check", config + ".config", "--no-data", "--memory", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    parameters, length = found["network"]["totals"]["numbers"], int(TABLE[name][1])
    (step,) = (row["step"] for row in found["memory"]["rows"] if row["frames"] == length)
    assert TABLE[name] == ("%.1f M" % (parameters / 1e6), str(length), "%.0f GB" % (step / 2**30))


@pytest.mark.parametrize("name", SEARCHES)
def test_real_search(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The search can be planned; its language model has the parameters that the config of the model trains."""
    recipe, _, config = name.partition("/")
    monkeypatch.chdir(RECIPES / recipe)
    found = []
    for options in ([config + ".config", "++task", "search"], ["lm.config"]):
        assert main(["check", *options, "--no-data", "--json"]) == 0
        layers = json.loads(capsys.readouterr().out)["network"]["layers"]
        found.append({path for layer in layers for path in layer["parameters"].values()})
    endings = {path.partition("lm_masked/")[2] or path.partition("/rec/lm/")[2] for path in found[0]} - {""}
    assert endings == found[1]


@pytest.mark.slow
def test_a_blank_in_the_last_frame_is_the_end_of_the_sentence(folder_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the language model of a transducer rules the end out, the last frame of each sequence has a label."""
    monkeypatch.chdir(folder_of("librispeech"))
    forget_modules()
    config, blank, end = Config.from_file("transducer-lm.config"), 40, 2
    config.typed("network")["found"] = {"class": "decide", "from": "transducer_frames", "is_output_layer": True}
    net = Network.from_config(config, search=True)
    rng = np.random.default_rng(1)
    params = {path: rng.normal(size=value.shape, scale=0.5) for path, value in net.get_param_values().items()}
    params["transducer_logits/b"][blank] += 6.0  # blanks everywhere
    feed = {"data": rng.normal(size=(2, 20, 80)).astype("float32"), "data/size0": np.array([20, 13], "int32")}
    feed.update({"classes": np.ones((2, 3), "int32"), "classes/size0": np.array([3, 2], "int32")})
    for bias, ends_with_label in ((0.0, False), (-1000.0, True)):
        params["transducer_frames/rec/lm_masked/output/b"][end] = bias
        net.set_param_values(params)
        found = net.run(feed).layers["found"]
        for labels, length in zip(found.value, found.sizes[1]):
            assert (labels[: length - 1] == blank).all()
            assert (labels[length - 1] != blank) == ends_with_label
