"""Kernels compile for each kind of CPU, whatever the one that runs the tests: intrinsics of a wider one are guarded."""

from __future__ import annotations

import os
import platform
import subprocess

import pytest

from returnn_tf.native.sources import OPS, source_folder
from returnn_tf.native.toolchain import find_toolchain


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the targets are those of x86-64")
@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3", "sapphirerapids"])
def test_kernels_compile(target: str) -> None:
    compiler = find_toolchain(()).compiler
    known = subprocess.run(
        [*compiler, "-march=" + target, "-E", "-x", "c++", os.devnull], capture_output=True, check=False
    )
    if known.returncode:
        pytest.skip("the compiler does not know %s" % target)
    kernels = [os.path.join(source_folder(), path) for name in OPS.names() for path in OPS[name].kernels]
    command = [
        *compiler,
        "-std=c++17",
        "-fsyntax-only",
        "-march=" + target,
        "-pthread",
        "-I",
        source_folder(),
        *kernels,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
