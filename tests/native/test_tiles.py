"""Products on the tile unit of newer CPUs."""

import os
import subprocess

import pytest

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.sources import source_folder
from returnn_tf.native.toolchain import find_toolchain
from tests.native.tiles import EMULATED_TILES, WITH_VECTORS_OF_TILES

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.mark.parametrize("flags", [("-O3",), ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")])
@pytest.mark.parametrize(
    "unit", [("-march=native",), (*WITH_VECTORS_OF_TILES, *EMULATED_TILES)], ids=["real", "emulated"]
)
def test_products(flags, unit, tmp_path):
    """They are as precise as those of floats, also where the compiler leaves more in memory."""
    try:
        compiler = find_toolchain(unit[:1]).compiler
    except NativeOpError as exc:
        pytest.skip(str(exc))
    program = str(tmp_path / "driver")
    command = [*compiler, "-std=c++17", *flags, *unit, "-pthread", "-I", source_folder()]
    built = subprocess.run(
        [*command, os.path.join(HERE, "tiles_driver.cc"), "-o", program], capture_output=True, text=True, check=False
    )
    if "cannot find" in built.stderr and "san" in built.stderr:
        pytest.skip("the compiler comes without these sanitizers")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode == -4:
        pytest.skip("this CPU lacks the vectors beside the unit")
    if done.stdout.strip() == "none":
        pytest.skip("the CPU has no tile unit (Intel AMX), or Linux does not let this process use it")
    assert done.stdout.strip() == "good", done.stdout + done.stderr
