"""What the programs here share: kernels built without TensorFlow, for a GPU, the CPU or the emulator; their times."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any, Callable, Optional

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = os.path.join(ROOT, "native_ops")
_folder = tempfile.TemporaryDirectory(prefix="rtf-bench-")


def cpu_library(*sources: str) -> ctypes.CDLL:
    """Return kernels for the CPU of this machine.

    :param sources: relative to ``native_ops/``
    """
    return _library(["g++", "-O3", "-march=native", "-std=c++17", "-fPIC", "-pthread"], sources)


def gpu_library(torch: Optional[Any], *sources: str) -> ctypes.CDLL:
    """Return kernels for the GPU of this machine.

    :param torch: the module; None: for the emulator
    :param sources: relative to ``native_ops/``
    """
    if torch is None:
        emulator = ["-DRTF_CUDA_EMULATION=1", "-I", os.path.join(ROOT, "tests", "native", "cuda"), "-I", SOURCES]
        return _library(["g++", "-x", "c++", "-std=c++17", "-O1", "-fPIC", "-fno-gnu-unique", *emulator], sources)
    arch = "-arch=sm_%d%d" % torch.cuda.get_device_capability()
    return _library(["nvcc", "-O3", "-std=c++17", arch, "-Xcompiler", "-fPIC"], sources)


def _library(command: list[str], sources: Sequence[str]) -> ctypes.CDLL:
    to = os.path.join(_folder.name, "%s-%d.so" % (os.path.basename(command[0]), len(os.listdir(_folder.name))))
    subprocess.run([*command, "-shared", *(os.path.join(SOURCES, path) for path in sources), "-o", to], check=True)
    return ctypes.CDLL(to)


def import_torch(emulated: bool) -> Optional[Any]:
    """Return PyTorch, with a GPU; None if the emulator is to be used.

    :raises SystemExit: there is no GPU for it
    """
    if emulated:
        return None
    try:
        import torch  # only where there is a GPU
    except ImportError as exc:
        raise SystemExit("PyTorch is needed (%s); --emulated does without it and without a GPU" % exc) from exc
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU; --emulated does without it")
    return torch


def milliseconds(torch: Any, step: Callable[[], Any], repeat: int = 10) -> float:
    """Return the milliseconds of one step, by the clock of the GPU; waiting for the host counts too."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeat):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeat
