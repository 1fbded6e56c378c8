"""The kernels under the sanitizers of the compiler: no access beyond an array, nothing undefined, no race."""

import os
import subprocess

import pytest

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.sources import source_folder
from returnn_tf.native.toolchain import find_toolchain

HERE = os.path.dirname(os.path.abspath(__file__))
DRIVERS = {
    "lstm": ("lstm_driver.cc", "lstm/lstm_cpu.cc"),
    "mdlstm": ("mdlstm_driver.cc", "mdlstm/mdlstm_cpu.cc"),
}
# what this machine has, and what every one has: the two code paths for the width of a vector
TARGETS = {"native": ("-march=native",), "baseline": ()}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
@pytest.mark.parametrize("name", DRIVERS)
def test_sanitizers(name, sanitizer, target, tmp_path):
    driver, kernels = DRIVERS[name]
    try:
        compiler = find_toolchain(TARGETS[target]).compiler
    except NativeOpError as exc:
        pytest.skip(str(exc))
    program = str(tmp_path / "driver")
    command = [*compiler, "-std=c++17", "-O1", "-g", "-fsanitize=" + sanitizer, "-fno-sanitize-recover=all", "-pthread"]
    command += [*TARGETS[target], "-I", source_folder(), os.path.join(HERE, driver)]
    built = subprocess.run(
        [*command, os.path.join(source_folder(), kernels), "-o", program], capture_output=True, text=True, check=False
    )
    if "cannot find" in built.stderr and "san" in built.stderr:
        pytest.skip("the compiler comes without the sanitizer: %s" % sanitizer)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.strip() == "good", done.stdout + done.stderr
