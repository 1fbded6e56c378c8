"""Drivers: programs ``NAME_driver.cc`` that run kernels without TensorFlow, and say "good" or what is wrong."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
from collections.abc import Sequence

import pytest

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.sources import OPS, source_folder
from returnn_tf.native.toolchain import find_toolchain
from tests.compiling import compile_cached
from tests.waiting import LONG

HERE = pathlib.Path(__file__).parent
#: What compilers say of flags that they do not know, or of sanitizers that are not installed.
_LACKS = re.compile(r"unrecognized command|unknown (argument|target CPU)|cannot find .*san")
_ILLEGAL_INSTRUCTION = -4


def check_driver(name: str, machine: Sequence[str], options: Sequence[str], folder: pathlib.Path) -> None:
    """Build a driver, with the kernels of the op of this name if there is one, and run it.

    The test is skipped where the compiler does not know the flags, or the CPU lacks what the driver needs.

    :param machine: flags for a set of instructions, the first one that of the architecture
    :param options: other flags
    :param folder: for the program
    """
    try:
        compiler = find_toolchain(machine[:1]).compiler
    except NativeOpError as exc:
        pytest.skip(str(exc))
    kernels = [os.path.join(source_folder(), path) for path in OPS[name].kernels] if name in OPS else []
    first = folder / "with_driver.cc"  # the headers of both are half a second for the compiler
    first.write_text("".join('#include "%s"\n' % path for path in [*kernels[:1], HERE / ("%s_driver.cc" % name)]))
    command = [*compiler, "-std=c++17", *options, *machine, "-I", source_folder()]
    program = str(folder / "driver")
    built = compile_cached(command, [str(first), *kernels[1:]], program)
    if built.returncode and _LACKS.search(built.stderr):
        pytest.skip("the compiler does not know " + " ".join([*options, *machine]))
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=20 * LONG)
    if done.returncode == _ILLEGAL_INSTRUCTION:
        pytest.skip("this CPU lacks the instructions")
    if done.stdout.strip() == "none":
        pytest.skip("the CPU lacks the unit that the driver tests, or Linux does not let this process use it")
    assert done.stdout.strip() == "good" and done.returncode == 0, done.stdout + done.stderr
