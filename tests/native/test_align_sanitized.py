"""The kernels of the alignments under the address and the undefined-behaviour sanitizer, for several CPUs."""

import pathlib
import platform
import subprocess

import pytest

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.sources import OPS, source_folder
from returnn_tf.native.toolchain import find_toolchain

FLAGS = ["-std=c++17", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wno-psabi", "-pthread"]
TARGETS = ["-march=native", "-march=x86-64-v3", "-march=x86-64"] if platform.machine() == "x86_64" else ["-O1"]


@pytest.mark.parametrize("target", TARGETS)
def test_sanitizers(target, tmp_path):
    try:
        compiler = find_toolchain().compiler
    except NativeOpError as exc:
        pytest.skip(str(exc))
    source, program = pathlib.Path(__file__).with_name("align_sanitized.cc"), tmp_path / "program"
    probe = [*compiler, *FLAGS, "-x", "c++", "-", "-o", str(program)]
    if subprocess.run(probe, input="int main() {}", text=True, capture_output=True).returncode:
        pytest.skip("the compiler has no sanitizers")
    kernels = [str(pathlib.Path(source_folder()) / path) for path in OPS["align"].kernels]
    command = [*compiler, *FLAGS, target, "-I", source_folder(), str(source), *kernels, "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    try:
        done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300)
    except OSError as exc:  # other instructions than this CPU has
        pytest.skip(str(exc))
    if done.returncode == -4:
        pytest.skip("this CPU does not have the instructions of %s" % target)
    assert done.stdout == "good\n", done.stdout + done.stderr
