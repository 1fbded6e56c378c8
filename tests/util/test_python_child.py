"""Processes that this program starts import nothing from the working directory, where others may write."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from returnn_tf.util.python_child import python_command
from tests.waiting import LONG

ROOT = pathlib.Path(__file__).resolve().parents[2]
_LAUNCHER = "import sys\nfrom returnn_tf.cli.main import main\nsys.exit(main())\n"  # as pip writes it
#: what each child needs first, and what Python itself imports for `-c`, for a traceback or for `-m`
_NAMES = ("json", "numpy", "returnn_tf", "tensorflow", "h5py", "pickle", "linecache", "runpy", "traceback", "socket")
_CONFIG = """
import beside
train = dev = {"class": "Task12AXDataset", "num_seqs": 4}
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {"output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "data"}}
batch_size = 1000
num_epochs = beside.EPOCHS
learning_rate = 0.1
device = "cpu"
model = "net/m"
tf_log_dir = None
"""
_DOCTOR = "from returnn_tf.cli import doctor; print(doctor.probe_tensorflow(), doctor._nvcc(), doctor._horovod())"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a folder with a config, a module that it imports, and modules that others left there."""
    top = tmp_path
    there = top / "shared"
    there.mkdir()
    for name in _NAMES:
        (there / (name + ".py")).write_text("import os; os.mkdir(%r)\n" % str(top / ("executed-" + name)))
    (there / "beside.py").write_text("EPOCHS = 1\n")
    (there / "my.config").write_text(_CONFIG)
    (top / "returnn-tf").write_text(_LAUNCHER)
    (top / "doctor").write_text(_DOCTOR)
    return there


@pytest.mark.slow
@pytest.mark.parametrize(
    "programs",
    [
        # the second and third one use what the first one leaves
        [
            ["returnn-tf", "my.config"],
            ["returnn-tf", "data", "info", "my.config"],
            ["returnn-tf", "export", "my.config", "--epoch", "1", "--output", "exported"],
        ],
        pytest.param([["doctor"]], marks=pytest.mark.long),  # tests/cli/test_doctor.py has doctor --quick
    ],
    ids=["train, data info, export", "doctor"],
)
def test_commands_import_nothing_from_the_working_directory(folder: pathlib.Path, programs: list[list[str]]) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    for program, *arguments in programs:
        command = [sys.executable, str(folder.parent / program), *arguments]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=LONG)
        executed = sorted(path.name for path in folder.parent.glob("executed-*"))
        assert executed == [] and done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_found_where_it_is(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in an editable install, of which sys.path knows nothing."""
    (tmp_path / "returnn_tf.py").write_text("raise SystemExit('the wrong one')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if os.path.realpath(path) != str(ROOT)] + ["."])
    code = "import returnn_tf.util.lazy_tf; print(returnn_tf.__file__, sys.argv[1:], sys.path[-1])"
    done = subprocess.run(
        python_command(code, "a b", "'"), capture_output=True, text=True, timeout=LONG,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    assert done.stdout.split() == [str(ROOT / "returnn_tf" / "__init__.py"), "['a", "b',", '"\'"]', str(tmp_path)], done


def test_paths_of_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose name is no text, or has quotes, is passed on as it is."""
    monkeypatch.setattr(sys, "path", [*sys.path, "/a'\"\\\n\udcff:b", "/ü"])
    done = subprocess.run(python_command("print(ascii(sys.path[-2:]))"), capture_output=True, text=True, timeout=LONG)
    assert done.stdout.strip() == ascii(["/a'\"\\\n\udcff:b", "/ü"]), done


#: where a program is started by other means, and why nothing is imported from the working directory there
_OTHERS = {
    "util/python_child.py",
    "rasr/processes/process.py",  # -I -S, a file
    "export/saved_model/run.py",  # a file, which must not load this package; its folder is the first in sys.path
    "cli/doctor.py",  # is printed
    "cli/submit/root.py",  # is printed
}


def test_all_children_are_started_like_that() -> None:
    package = ROOT / "returnn_tf"
    files = {
        p.relative_to(package).as_posix() for p in package.rglob("*.py") if "sys.executable" in p.read_text("utf8")
    }
    assert files <= _OTHERS
