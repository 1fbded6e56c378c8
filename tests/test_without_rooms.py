"""The package without the folders for other programs: it is complete, and says what is missing where one needs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from returnn_tf.config.registry import ROOMS

ROOT = Path(__file__).parents[1]
NAMES = [room.rpartition(".")[2] for room in ROOMS]

#: Tests of the rest with a config, here and there, that uses names of a room; and those on a whole checkout.
WITH_ROOMS = [
    *("bench", "demos", "docs", "release", "tools", "test_makefile.py", "test_plugins.py", "test_tree.py"),
    *("test_without_rooms.py", "test_tiers.py", "cli/test_completion.py", "cli/test_data.py", "cli/test_migrate.py"),
    *("cli/test_guide_mistakes.py", "cli/test_beginner_mistakes.py", "cli/test_explain.py"),
    *(
        "cli/test_check_and_layers.py",
        "cli/test_check_json.py",
        "config/test_settings.py",
        "datasets/test_file_cache.py",
    ),
    *("datasets/test_missing_files.py", "datasets/test_pipes.py"),
    *("compiler/published", "compiler/test_loops.py", "compiler/test_published_kinds.py"),
    *("datasets/test_map_dataset.py", "datasets/test_postprocessing.py"),
    *("export/test_decoders.py", "export/test_layer_table.py"),
    *(
        "engine/test_global_step.py",
        "engine/test_horovod.py",
        "layers/rec/test_choice.py",
        "layers/test_elementwise.py",
    ),
    *("reliability/test_ranks_failures.py", "tasks/test_forward_forms.py", "tasks/test_pretraining.py"),
]
#: Tests on the classes of all rooms.
OF_ALL = ["layers/test_conformance.py::test_goldens_are_of_existing_classes"]
#: A representative part of the tests of the rest.
QUICK = ["tensor/test_match.py", "datasets/test_batching.py", "compiler/test_subnetworks.py", "config/test_options.py"]

CONFIG = """#!returnn-tf
batch_size, learning_rate, behavior_version = 500, 0.01, 21
train = {"class": "Task12AXDataset", "num_seqs": 10}
dev = search_data = {"class": "Task12AXDataset", "num_seqs": 3, "fixed_random_seed": 1}
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
model, num_epochs, search_output_file = "net/network", 1, "out.txt"
network = {
    "lstm": {"class": "rec", "unit": "lstm", "n_out": 5, "from": "data"},
    "double": {"class": "eval", "from": "lstm", "eval": "source(0) * 2"},
    "output": {"class": "rec", "from": "double", "target": "classes", "unit": {
        "p": {"class": "softmax", "from": ["data:source", "prev:label"], "target": "classes", "loss": "ce"},
        "label": {"class": "linear", "from": "output", "n_out": 3},
        "output": {"class": "choice", "from": "p", "target": "classes", "beam_size": 2, "initial_output": 0},
    }},
}
"""
#: A line of a config -> what the error says.
NEEDING_ROOMS = {
    "from TFUtil import where_bc": "No module named 'TFUtil'. Install it, or put the file into the folder of the "
    "config. What is for RETURNN needs returnn_tf.compat, which is not part of this installation.",
    "network['double']['eval'] = 'source(0) * self.network.x'": "Layer 'double' (class 'eval'): its code asks for "
    "'network' of a layer. What is for RETURNN needs returnn_tf.compat, which is not part of this installation.",
    "train = {'class': 'ExternSprintDataset'}": "What is for RASR needs returnn_tf.rasr, which is not part of this ",
}
PROGRAM = """
import contextlib, io, os, sys
import returnn_tf
for name in returnn_tf.__all__: getattr(returnn_tf, name)
from returnn_tf.cli.main import main
from returnn_tf.config.registry import rooms
assert not rooms()

def run(*args):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(list(args))
    return code, out.getvalue()

code, text = run("--help")
assert code == 0 and "export" in text and "tool " not in text, text
code, text = run("tool", "hdf-dump", "my.config")
assert code == 2 and "no command and no config file 'tool'. What is for RETURNN needs" in " ".join(text.split()), text
code, text = run("my.config")
assert code == 0 and "dev: score" in text, text
code, text = run("my.config", "++task", "search", "++load", "net/network.001")
assert code == 0 and os.path.getsize("out.txt"), text
for number in range(int(sys.argv[1])):
    code, text = run("bad%d.config" % number, "++model", "none/network")
    assert code == 2, text
    print("%d:" % number, " ".join(text.split()))
assert not [name for name in sys.modules if name.startswith(("returnn_tf.compat", "returnn_tf.rasr"))]
"""


def without_rooms(folder: str, names: list[str]) -> list[str]:
    """Return what is not copied from a folder of the checkout."""
    in_top = Path(folder) in (ROOT / "returnn_tf", ROOT / "tests")
    return [name for name in names if name == "__pycache__" or (in_top and name in NAMES)]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package and its tests without the rooms."""
    folder = tmp_path_factory.mktemp("without_rooms")
    for name in ("returnn_tf", "tests", "native_ops", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=without_rooms)
    shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")
    return folder


def python(copy: Path, *args: str) -> str:
    """Return what Python prints; it does not find the checkout that is installed."""
    path = os.pathsep.join([str(copy), *(entry for entry in sys.path if "site-packages" in entry)])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-S", *args], cwd=copy, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


@pytest.mark.slow
def test_help_training_and_search(copy: Path) -> None:
    """They work; what needs a room is one line that says so."""
    (copy / "my.config").write_text(CONFIG)
    for number, line in enumerate(NEEDING_ROOMS):
        (copy / ("bad%d.config" % number)).write_text(CONFIG + line + "\n")
    printed = python(copy, "-c", PROGRAM, str(len(NEEDING_ROOMS))).splitlines()
    for line, expected in zip(printed, NEEDING_ROOMS.values()):
        assert expected in line


@pytest.mark.slow
def test_some_tests_of_the_rest(copy: Path) -> None:
    python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--fast", *("tests/" + name for name in QUICK))


@pytest.mark.long
def test_the_rest(copy: Path) -> None:
    """Some cases of each test, as by `make test-fast`; all of them take half an hour."""
    left_out = ["--ignore=tests/" + name for name in WITH_ROOMS] + ["--deselect=tests/" + name for name in OF_ALL]
    python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--fast", *left_out, "tests")
