"""TensorFlow is imported without Keras and the garbage collector, which cost more than half of its import and its end.

A module in its place does what it does at its import: it tries to import the optimizers of Keras.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE = """
import gc, importlib
try:
    found = importlib.import_module(%r)
except ImportError:
    found = None
collects = gc.isenabled()
"""
NAMES = ["keras.src.optimizers", "tf_keras.src.optimizers"]


def run(folder: Path, code: str, name: str = NAMES[0], end: str = "") -> str:
    """Return what a program prints that finds stand-ins for TensorFlow and one kind of Keras.

    :param end: of the module in place of TensorFlow
    """
    (folder / "tensorflow.py").write_text(MODULE % name + end)
    package, source, module = name.split(".")
    (folder / package / source).mkdir(parents=True)
    for path in ("__init__", "%s/__init__" % source, "%s/%s" % (source, module)):
        (folder / package / (path + ".py")).touch()
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": "%s:%s" % (folder, ROOT)}
    code = "import gc, sys; from returnn_tf.util import lazy_tf; from returnn_tf.util.lazy_tf import tf\n" + code
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("name", NAMES)
def test_without_keras(tmp_path: Path, name: str) -> None:
    """Whoever uses Keras later finds it."""
    code = "print(tf.found, tf.collects, gc.isenabled(), %r in sys.modules)\nimport %s" % (name.partition(".")[0], name)
    assert run(tmp_path, code, name) == "None False True False\n"


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    """Keras that is imported, and a garbage collector that is off."""
    code = "import keras.src.optimizers as before; gc.disable(); print(tf.found is before, gc.isenabled())"
    assert run(tmp_path, code + "\nimport keras.src.optimizers") == "True False\n"


def test_after_a_failed_import(tmp_path: Path) -> None:
    code = "try: tf.found\nexcept OSError as exc: print(exc, gc.isenabled())\nimport keras.src.optimizers"
    assert run(tmp_path, code, end="raise OSError('no library')") == "no library True\n"


@pytest.mark.parametrize("ours", [False, True])
def test_what_is_there_after_the_import_is_frozen(tmp_path: Path, ours: bool) -> None:
    """In a process that runs nothing but this program; in that of another, its objects are left alone."""
    code = "lazy_tf.freeze_after_import()\n" * ours + "before = gc.get_freeze_count(); tf.found\n"
    assert run(tmp_path, code + "print(before, gc.get_freeze_count() > 0)") == "0 %s\n" % ours
