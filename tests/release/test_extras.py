"""The extras one by one, each in an empty environment from a wheel; needs a registry of packages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PROJECT = (CHECKOUT / "pyproject.toml").read_text()
SECTION = PROJECT.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
#: Not installed here: gigabytes; programs without modules; what is built from sources by compilers; programs, which
#: "make venv" installs.
LEFT_OUT = {"gpu", "nvcc", "horovod", "kenlm", "dev"}
EXTRAS = [name for name in re.findall(r"(?m)^([\w-]+) = \[", SECTION) if name not in LEFT_OUT]
#: Prints a module of each distribution that the extra asks for here, and imports it.
IMPORT = """
import importlib, importlib.metadata as m, json, re, sys
extra, found = sys.argv[1], {}
for line in m.requires("returnn-tf"):
    name, _, marker = line.partition(";")
    if "extra ==" in marker and re.search("extra == .%s." % extra, marker):
        name = re.match(r"[\\w.-]+", name)[0]
        if name == "returnn-tf" or "python_version" in marker:
            continue
        files = [str(f) for f in m.files(name)]
        modules = [f.split("/")[0] for f in files if f.endswith("/__init__.py") and f.count("/") == 1]
        modules += [f[:-3] for f in files if f.endswith(".py") and "/" not in f]
        found[name] = modules[:1]
        importlib.import_module(modules[0])
print("FOUND" + json.dumps(found))
"""
TRAIN = """
train = dev = {"class": "Task12AXDataset", "num_seqs": 20}
extern_data = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
network = {
    "lstm": {"class": "rec", "unit": "lstm", "n_out": 4, "from": "data"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "lstm"},
}
batch_size, num_epochs, model, optimizer = 500, 1, "model/net", {"class": "adam"}
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(CHECKOUT)], check=True
    )
    return next(folder.glob("*.whl"))


@pytest.mark.long
@pytest.mark.parametrize("extra", EXTRAS)
def test_extra(wheel: Path, extra: str, tmp_path: Path) -> None:
    """Everything is installed, fits together and can be imported; with ``cpu``, a network is trained."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = str(tmp_path / "env" / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    extras = "onnx,cpu" if extra == "onnx" else extra  # tf2onnx can't be imported without TensorFlow
    subprocess.run([*pip, "install", "-q", "%s[%s]" % (wheel, extras)], check=True, cwd=tmp_path)
    subprocess.run([*pip, "check"], check=True, cwd=tmp_path)
    if extra == "tensorflow-io":  # can't be imported without TensorFlow 2.16
        return
    done = subprocess.run([python, "-c", IMPORT, extra], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.partition("FOUND")[2])
    assert found and all(found.values())
    if extra == "cpu":
        (tmp_path / "x.config").write_text(TRAIN)
        env = {"PATH": "%s/env/bin:/usr/bin:/bin" % tmp_path, "HOME": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(["returnn-tf", "x.config"], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert list((tmp_path / "model").glob("net.001*")) and "warning" not in done.stderr.lower(), done.stderr
