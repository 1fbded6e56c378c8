"""The benchmark of the LSTM's kernels is a program in C++: it has to go with their interface."""

import os
import subprocess

import pytest

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.sources import source_folder
from returnn_tf.native.toolchain import find_toolchain

PROGRAM = os.path.join(os.path.dirname(source_folder()), "bench", "lstm_kernel.cc")


def test_compiles():
    try:
        compiler = find_toolchain(()).compiler
    except NativeOpError as exc:
        pytest.skip(str(exc))
    command = [*compiler, "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", "-I", source_folder(), PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
