"""Runs a SavedModel in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ExportDataError
from returnn_tf.export.saved_model.loader import read_facts
from returnn_tf.util.lazy_tf import tf

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "loader.py")
_SECONDS = 600.0


def run_in_process(
    folder: str, feed: Mapping[str, NDArray[Any]], *, program: str = _PROGRAM
) -> dict[str, NDArray[Any]]:
    """Return the outputs of an exported graph for inputs, from a process that loads only what the export has.

    :param folder: of the export, with its side file
    :param feed: arrays by input name
    :param program: file that the process runs, with the arguments of `returnn_tf.export.saved_model.loader`
    :raises DataError: the process failed; gives its last line
    """
    try:
        facts = read_facts(folder)
    except (OSError, ValueError) as exc:
        raise ExportDataError("The exported graph in %s can't be run: %s" % (folder, exc)) from None
    with tempfile.TemporaryDirectory() as temp:
        inputs, outputs = os.path.join(temp, "inputs.npz"), os.path.join(temp, "outputs.npz")
        np.savez(inputs, **{name: _plain(value) for name, value in feed.items()})
        code, errors = _run_program(program, [os.path.abspath(folder), inputs, outputs], temp)
        if code:
            lines = errors.strip().splitlines() or ["exit code %d" % code]
            raise ExportDataError("The exported graph in %s can't be run: %s" % (folder, lines[-1]))
        with np.load(outputs, allow_pickle=False) as arrays:
            infos = facts["outputs"]
            return {name: _typed(arrays[name], infos[name]["dtype"]) for name in arrays.files}


def _run_program(program: str, arguments: Sequence[str], cwd: str) -> tuple[int, str]:
    """Run a program in a new process.

    :param program: path of the file
    :param arguments: of its function ``main``
    :return: exit code and stderr
    :raises DataError: it does not end
    """
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    try:
        done = subprocess.run(
            [sys.executable, program, *arguments], cwd=cwd,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "PYTHONPATH": paths},
            capture_output=True, text=True, errors="replace", timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ExportDataError(
            "The exported graph in %s did not end within %g seconds." % (arguments[0], _SECONDS)
        ) from None
    return done.returncode, done.stderr


def _typed(value: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return an array from a file as TensorFlow gives it: numpy's files know neither bfloat16 nor its strings."""
    if value.dtype.kind == "V":
        return value.view(tf.as_dtype(dtype).as_numpy_dtype)
    return value.astype(object) if value.dtype.kind == "S" else value


def _plain(value: NDArray[Any]) -> NDArray[Any]:
    """Return an array that needs no pickle: strings as bytes of fixed length."""
    return value.astype("S") if value.dtype.kind == "O" else value
