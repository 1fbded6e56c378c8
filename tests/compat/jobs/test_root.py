"""The folder which job managers know as ``returnn_root``: scripts, and a package ``returnn`` without TensorFlow."""

from __future__ import annotations

import ast
import os
import pathlib
import subprocess
import sys

import pytest

from returnn_tf._version import __version__, shown_version
from returnn_tf.cli.main import main
from returnn_tf.config import Config, ConfigError

CHECKOUT = pathlib.Path(__file__).parents[3]
ROOT = CHECKOUT / "i6"
#: Scripts of a checkout that jobs do not know.
OWN_TOOLS = {"compose_digit_lines.py", "make_digits_hdf.py", "submit.py"}
#: A package that is installed but should not be used.
INSTALLED = "raise AssertionError('the installed one')\n"

MANAGER = """
import os, pathlib, sys
for name in ("tensorflow", "soundfile", "scipy", "matplotlib"):
    sys.modules[name] = None  # importing it is an error
sys.path.append(sys.argv[1])
import numpy
from returnn.datasets.hdf import SimpleHDFWriter

writer = SimpleHDFWriter(pathlib.Path("speaker.hdf"), 3, labels=["a", "b", "c"], ndim=1)
writer.insert_batch(numpy.array([[2]], "int32"), [1], ["c/r/1"])
writer.insert_batch(inputs=numpy.array([[0]], "int32"), seq_len=[1], seq_tag=["c/r/2"])
writer.close()
audio = SimpleHDFWriter(filename="audio.hdf", dim=1)
audio.insert_batch(numpy.zeros([2, 5, 1], "float32"), [5, 3], ["c/r/1", "c/r/2"])
audio.close()

from returnn.config import Config, get_global_config, set_global_config
from returnn.datasets import init_dataset
from returnn.log import log

with open("returnn.config", "w") as file:
    file.write("#!rnn.py\\ntrain = {'class': 'HDFDataset', 'files': ['audio.hdf']}\\nunwanted = 3\\n")
    file.write("from returnn.tensor import Dim\\ndim = Dim(None, name='time')\\n\\nconfig = {}\\n")
    file.write("locals().update(**config)\\n")
config = Config()
config.load_file(pathlib.Path("returnn.config"))
set_global_config(config)
assert get_global_config() is config and not config.has("log")
config.typed_dict["log"] = ["./returnn.log"]
config.typed_dict.setdefault("log_verbosity", 5)
assert config.typed_dict.pop("unwanted") == 3 and not config.has("unwanted") and config.is_typed("log")
log.init_by_config(config)
print("counting", file=log.v3)
dataset = init_dataset(config.typed_value("train"))
dataset.init_seq_order(epoch=1)
seq = 0
while dataset.is_less_than_num_seqs(seq):
    dataset.load_seqs(seq, seq + 1)
    lengths = dataset.get_seq_length(seq)
    assert "data" in lengths.keys() and len(dataset.get_data(seq, "data")) == lengths["data"]
    print(dataset.get_tag(seq), lengths["data"])
    seq += 1
dataset = init_dataset({
    "class": "MetaDataset", "seq_order_control_dataset": "audio",
    "datasets": {name: {"class": "HDFDataset", "files": [name + ".hdf"]} for name in ("audio", "speaker")},
    "data_map": {"data": ("audio", "data"), "speaker": ("speaker", "data")},
})
dataset.init_seq_order(epoch=1)
dataset.load_seqs(0, 2)
assert [int(dataset.get_data(seq, "speaker")[0]) for seq in range(2)] == [2, 0]
log.initialize(verbosity=[2])
log.print_warning("beware")
print("not shown", file=log.v3)

import returnn
import returnn.__main__
import returnn.tf.util.data
import returnn.util.better_exchook
from returnn.datasets.util.vocabulary import Vocabulary
from returnn.forward_iface import ForwardCallbackIface
from returnn.import_ import import_
from returnn.tensor import Dim, Tensor, batch_dim
from returnn.tensor.dim import Dim as DimOfPart
from returnn.tensor.tensor_dict import TensorDict
from returnn.util.basic import BackendEngine, cf
from returnn.util.file_cache import CachedFile

BackendEngine.select_engine(config=config)
assert BackendEngine.is_tensorflow_selected() and not BackendEngine.is_torch_selected()
assert isinstance(config.typed_value("dim"), Dim) and Dim(5, name="f").dimension == 5
time_dim = Dim(Tensor("time", dims=[batch_dim], dtype="int32"))
assert DimOfPart is Dim and time_dim.dimension is None and "time" in repr(time_dim) and TensorDict().data == {}
assert returnn.tf.util.data.batch_dim is batch_dim and returnn.__main__.config is config
print(returnn.__version__, os.path.dirname(os.path.dirname(returnn.__file__)))
assert not any(name.startswith(("tensorflow", "keras")) for name in sys.modules if sys.modules[name] is not None)
"""


def clean_environment(**others: str) -> dict[str, str]:
    """Return what a worker of Sisyphus has."""
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": os.environ.get("HOME", "/"), **others}


@pytest.fixture
def installed(tmp_path: pathlib.Path) -> str:
    """A folder for PYTHONPATH with another returnn_tf."""
    package = tmp_path / "site" / "returnn_tf"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(INSTALLED)
    return str(package.parent)


@pytest.mark.parametrize("root", [ROOT, CHECKOUT])
def test_what_job_managers_import(root: pathlib.Path, tmp_path: pathlib.Path, installed: str) -> None:
    """In their own Python, without TensorFlow, with the root last on the path; the checkout itself is one, too."""
    (tmp_path / "manager.py").write_text(MANAGER)
    command = [sys.executable, "-W", "error", "manager.py", str(root)]
    env = clean_environment(PYTHONPATH=installed)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "counting",
        "c/r/1 5",
        "c/r/2 3",
        "Warning: beware",
        "%s %s" % (__version__, CHECKOUT / "returnn_tf"),
    ]
    assert (tmp_path / "returnn.log").read_text() == "counting\n"


@pytest.mark.slow
@pytest.mark.parametrize("script", [CHECKOUT / "rnn.py", ROOT / "rnn.py"])
def test_the_package_beside_the_script_is_used(script: pathlib.Path, tmp_path: pathlib.Path, installed: str) -> None:
    """Also by a link to it; files beside a config keep the names that a checkout has, too."""
    for name in ("setup.py", "tests.py"):
        (tmp_path / name).write_text("value = 'beside the config'\n")
    (tmp_path / "my.config").write_text(
        "#!rnn.py\nimport setup, tests\nassert setup.value == tests.value == 'beside the config'\ntask = 'nop'\n"
    )
    link = tmp_path / "link.py"
    link.symlink_to(script)
    for exe in ([sys.executable, str(script)], [str(link)]):
        env = {**clean_environment(PYTHONPATH=installed), "PATH": os.path.dirname(sys.executable)}
        done = subprocess.run([*exe, "my.config"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "task nop" in done.stdout, done.stderr


def test_the_package_of_the_checkout_is_that_of_the_folder() -> None:
    """Which works in either place; links would not survive an archive."""
    for path in (ROOT / "returnn").iterdir():
        if path.suffix == ".py":
            assert path.read_text() == (CHECKOUT / "returnn" / path.name).read_text()


@pytest.mark.parametrize("package", [ROOT / "returnn", CHECKOUT / "returnn"])
def test_the_module_that_rasr_loads(package: pathlib.Path, installed: str) -> None:
    """A job passes ``<returnn_root>/..`` as path, and this name; RASR then calls functions of the module."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import returnn.SprintInterface as s; s.init, s.exit"
    command = [sys.executable, "-c", code, str(package / "..")]
    done = subprocess.run(
        command, env=clean_environment(PYTHONPATH=installed), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_scripts_are_those_of_the_checkout() -> None:
    """Each of i6/tools runs its namesake; links would not survive an archive."""
    ours = sorted(path.name for path in (ROOT / "tools").glob("*.py"))
    texts = {(ROOT / "tools" / name).read_text() for name in ours}
    assert len(texts) == 1 and all(os.access(ROOT / "tools" / name, os.X_OK) for name in ours)
    assert set(ours) == {path.name for path in (CHECKOUT / "tools").glob("*.py")} - OWN_TOOLS
    command = [sys.executable, str(ROOT / "tools" / "compile_native_op.py"), "--list"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=True)
    assert "lstm" in done.stdout.split()


def test_a_copy_of_the_folder_says_what_to_do(tmp_path: pathlib.Path) -> None:
    (tmp_path / "i6" / "returnn_tf").mkdir(parents=True)
    for name in ("rnn.py", "returnn_tf/__init__.py"):
        (tmp_path / "i6" / name).write_text((ROOT / name).read_text())
    command = [sys.executable, str(tmp_path / "i6" / "rnn.py")]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "returnn-tf root FOLDER" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_root_elsewhere(tmp_path: pathlib.Path, installed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """For a package that is installed without its checkout; the folder knows where that is."""
    folder = tmp_path / "new" / "root"
    assert main(["root", str(folder)]) == 0 and "returnn_root" in capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"returnn", "returnn_tf", "rnn.py", "tools"}
    code = "import sys; sys.path.append(sys.argv[1]); import returnn_tf, returnn.config; print(returnn_tf.__file__)"
    for command, output in [
        (["-c", code, str(folder)], str(CHECKOUT / "returnn_tf" / "__init__.py")),
        ([str(folder / "rnn.py"), "--version"], "returnn_tf " + shown_version()),
    ]:
        env = clean_environment(PYTHONPATH=installed if command[0] != "-c" else "")
        done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == output, done.stderr
    assert main(["root", str(folder)]) == 2 and "exists already" in capsys.readouterr().err
    assert main(["root"]) == 2 and main(["root", "/dev/null/x"]) == 1
    assert os.listdir(tmp_path / "new") == ["root"]


def test_a_config_as_a_dict() -> None:
    config = Config({"a": 1, "b": [2]})
    config.set_text("c", "3")
    values = config.typed_dict
    assert dict(values) == {"a": 1, "b": [2]} and len(values) == 2 and "c" not in values and config.is_true("c")
    values["c"] = 4
    del values["a"]
    assert config.int("c") == 4 and not config.has("a") and not config.is_true("a")
    with pytest.raises(KeyError):
        del values["a"]
    with pytest.raises(ConfigError, match="'a' is not set"):
        config.remove("a")
    rebuild, arguments = config.__reduce__()
    assert dict(rebuild(*arguments).typed_dict) == dict(values) == ast.literal_eval(repr(values))
