"""The kernels for CPUs of other instruction sets than this one: each branch that names one has to compile."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from returnn_tf.native.errors import NativeOpError
from returnn_tf.native.sources import source_folder
from returnn_tf.native.toolchain import find_toolchain
from tests.compiling import compile_cached

# vectors of 128, 256 and 512 bits, and a tile unit
TARGETS = ["x86-64", "x86-64-v3", "x86-64-v4", "sapphirerapids"]


def _depends(path: Path) -> bool:
    """Return whether a file has instructions, or branches, for some CPUs."""
    return any(word in path.read_text() for word in ("_mm", "__AVX", "RTF_TILES"))


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instruction sets are those of x86-64")
@pytest.mark.parametrize("target", TARGETS)
def test_compiles(target: str, tmp_path: Path) -> None:
    """Each file that has instructions of some CPUs, by itself: what it includes must not depend on another one."""
    try:
        compiler = find_toolchain([]).compiler
    except NativeOpError as exc:
        pytest.skip(str(exc))
    root = Path(source_folder())
    files = [path for ending in ("h", "cc") for path in sorted(root.glob("*/*." + ending)) if _depends(path)]
    assert root / "common" / "philox.h" in files
    alone = [tmp_path / ("%s.cc" % path.stem) for path in files]
    for one, path in zip(alone, files):
        one.write_text('#include "%s"\n' % path)
    command = [*compiler, "-std=c++17", "-fsyntax-only", "-march=" + target]
    done = compile_cached(command, list(map(str, alone)))
    if "bad value" in done.stderr:
        pytest.skip("the compiler does not know " + target)
    assert done.returncode == 0, done.stderr
