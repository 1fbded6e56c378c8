"""The kernels under the sanitizers of the compiler: no access beyond an array, nothing undefined, no race."""

import os
import subprocess

import pytest

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.sources import OPS, source_folder
from returnn_tf.native.toolchain import find_toolchain
from tests.compiling import compile_cached

pytestmark = pytest.mark.slow  # each starts processes

HERE = os.path.dirname(os.path.abspath(__file__))
# what this machine has, what most have, and what every one has: the code paths for the width of a vector
TARGETS = {"native": ("-march=native",), "avx2": ("-march=x86-64-v3",), "baseline": ()}


@pytest.mark.parametrize("target", ["native", *(pytest.param(t, marks=pytest.mark.long) for t in ("avx2", "baseline"))])
@pytest.mark.parametrize(
    "name, sanitizer",
    [
        pytest.param(name, sanitizer, marks=pytest.mark.long if sanitizer == "thread" and name != "lstm" else ())
        for name in OPS.names()
        for sanitizer in ("address,undefined", "thread")
    ],
)
def test_sanitizers(name, sanitizer, target, tmp_path):
    driver = os.path.join(HERE, "%s_driver.cc" % name)
    kernels = [os.path.join(source_folder(), path) for path in OPS[name].kernels]
    try:
        compiler = find_toolchain(TARGETS[target]).compiler
    except NativeOpError as exc:
        pytest.skip(str(exc))
    program = str(tmp_path / "driver")
    optimization = "-O1" if sanitizer == "thread" else "-O0"  # running takes longer than compiling there
    command = [*compiler, "-std=c++17", optimization, "-g1", "-pthread", "-fsanitize=" + sanitizer]
    command += ["-fno-sanitize-recover=all", *TARGETS[target], "-I", source_folder()]
    built = compile_cached(command, [driver, *kernels], program)
    if "cannot find" in built.stderr and "san" in built.stderr:
        pytest.skip("the compiler comes without the sanitizer: %s" % sanitizer)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "good" and done.returncode == 0, done.stdout + done.stderr  # 66: a race was told
