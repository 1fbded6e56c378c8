"""Builds kernels for the emulator and, where there is nvcc, for GPUs."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Optional

import pytest

from tests.compiling import compile_cached, text_cached
from tests.waiting import LONG

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(HERE))), "native_ops")
#: ``#pragma unroll`` is for nvcc only. Not -O0: the stacks of the fibers would be too small for some kernels.
_EMULATION = (
    "-x", "c++", "-std=c++17", "-O1", "-g1", "-DRTF_CUDA_EMULATION=1", "-Wall", "-Werror", "-Wno-unknown-pragmas",
    "-Wno-unused-function", "-fno-gnu-unique", "-I", HERE, "-I", SOURCES,
)  # fmt: skip
_ALIGNMENT = "-fsanitize=alignment"  # emulation/alignment.h tells it; the sanitizers have it, too
SANITIZERS = ("address,undefined", "thread")
_built: dict[tuple[str, ...], str] = {}
_folder = tempfile.TemporaryDirectory(prefix="rtf-emulated-")


def emulated(source: str, *flags: str, program: bool = False) -> str:
    """Compile a source for the emulator, once for all runs of the tests.

    :param source: a ``.cu`` file, relative to ``native_ops/``, or an absolute path
    :param flags: more flags, such as ``-fsanitize=address,undefined``
    :param program: whether it is a program with a ``main``, not a library
    :return: path of the library or program
    """
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    aligned = source.endswith(".cu") and not any(flag.startswith("-fsanitize=") for flag in flags)
    checks = [_ALIGNMENT] if aligned else []
    command = [compiler, *_EMULATION, *checks, *flags, *([] if program else ["-shared", "-fPIC"])]
    path = os.path.join(SOURCES, source)
    key = (*command, path)
    if key not in _built:
        to = os.path.join(_folder.name, hashlib.sha256("\0".join(key).encode()).hexdigest()[:16])
        done = compile_cached(command, [path], to)
        if "cannot find" in done.stderr and "san" in done.stderr:
            pytest.skip("the compiler comes without its sanitizers")
        assert done.returncode == 0, done.stderr
        _built[key] = to
    return _built[key]


def build_emulated(source: str, *flags: str) -> ctypes.CDLL:
    """Return the library of a source, compiled for the emulator; see `emulated`."""
    return ctypes.CDLL(emulated(source, *flags))


def run_sanitized(
    source: str,
    *flags: str,
    seed: int = 1,
    timeout: float = 20 * LONG,
    arguments: Sequence[str] = (),
    sanitizer: str = SANITIZERS[0],
) -> None:
    """Run a program under sanitizers of the compiler; it has to print "good" only.

    :param source: a program that includes the ``.cu`` file and calls its kernels on arrays of exactly their size
    :param sanitizer: one of `SANITIZERS`. "thread" finds accesses of two threads of CUDA to one place that nothing
        orders, also where the numbers come out right.
    """
    program = emulated(source, "-fsanitize=" + sanitizer, "-fno-sanitize-recover=all", *flags, program=True)
    environ = {**os.environ, "RTF_EMULATION_SEED": str(seed), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, timeout=timeout, env=environ
    )
    assert done.stdout.strip() == "good" and done.returncode == 0, done.stdout + done.stderr


def compile_for_gpu(source: str, arch: str, *flags: str) -> str:
    """Compile a source with nvcc; skips the test where there is none.

    :param arch: as "sm_90"
    :return: what ``ptxas -v`` says about registers, spills and shared memory
    """
    nvcc: Optional[str] = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    command = [nvcc, "-O3", "-std=c++17", "-arch=" + arch, "-Xcompiler", "-fPIC", "-Xptxas", "-v", *flags]
    says = partial(_says, [*command, "-I", SOURCES], os.path.join(SOURCES, source))
    return text_cached([*command, source], says, [SOURCES, HERE])  # one text for all checkouts


def check_without_spills(source: str, arch: str) -> None:
    """Compile a source with nvcc as `compile_for_gpu`; no kernel may keep a register in memory."""
    report = compile_for_gpu(source, arch)
    lines = [line.strip() for line in report.splitlines() if "spill stores" in line]
    assert lines and all(line.startswith("0 bytes stack frame, 0 bytes spill stores") for line in lines), report


def copy_sources(op: str, folder: Path) -> None:
    """Copy the sources of an op, and what all ops share, into a folder, for tests that change them."""
    for name in ("common", op):
        shutil.copytree(os.path.join(SOURCES, name), folder / name)


def replace(path: Path, text: str, by: str) -> None:
    """Replace the first occurrence of a text in a file, which has to have it."""
    content = path.read_text(encoding="utf8")
    assert text in content, "%s has no %r any more" % (path, text)
    path.write_text(content.replace(text, by, 1), encoding="utf8")


def _says(command: list[str], path: str) -> str:
    """Return the messages of a compiler."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "-c", path, "-o", os.path.join(folder, "kernels.o")], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    return done.stderr
