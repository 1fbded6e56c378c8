"""Calls C functions of kernels with arrays of numpy, on the emulated GPU and on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import pytest

from tests.native.cuda.memory import STREAM

_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, _TASK, ctypes.c_void_p)


class Threads(ctypes.Structure):
    """RtfThreads of ``common/parallel.h``."""

    _fields_ = [("run", RUN), ("pool", ctypes.c_void_p), ("n_threads", ctypes.c_int)]


@RUN
def _run_in_turn(_: Any, n_tasks: int, task: Any, argument: Any) -> None:
    for index in range(n_tasks):
        task(argument, index)


#: One thread, the calling one.
ALONE = Threads(_run_in_turn, None, 1)
#: The stream of the emulator, the last argument of what runs on a GPU.
IN_STREAM = ctypes.c_void_p(STREAM)


def on_gpu(library: ctypes.CDLL, name: str, shape: Any, *arrays: Any) -> None:
    """Call a function of kernels for GPUs, which ends in a stream; its error fails the test.

    :param shape: first argument, a structure
    :param arrays: further arguments: arrays, None for null, integers for int, numbers of ctypes for others
    """
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    error = function(ctypes.byref(shape), *map(_converted, arrays), IN_STREAM)
    assert error is None, error.decode()


def on_cpu(library: ctypes.CDLL, name: str, shape: Any, *arrays: Any) -> None:
    """Call a function of kernels for the CPU, which ends in threads: in this one.

    :param arrays: as in `on_gpu`
    """
    getattr(library, name)(ctypes.byref(shape), *map(_converted, arrays), ctypes.byref(ALONE))


def scratch(library: ctypes.CDLL, name: str, shape: Any) -> np.ndarray:
    """Return scratch of the size that a function of the library says, full of NaN."""
    function = getattr(library, name)
    function.restype = ctypes.c_int64
    return empty(function(ctypes.byref(shape)))


def pointer(x: np.ndarray) -> ctypes.c_void_p:
    """Return the pointer to an array."""
    return ctypes.c_void_p(x.ctypes.data)


def pointers(arrays: Sequence[np.ndarray]) -> Any:
    """Return an array of pointers, or a structure that has nothing else."""
    return (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))


def empty(*shape: int) -> np.ndarray:
    """Return an array that a kernel has to write: NaN."""
    return np.full(shape, np.nan, "float32")


def assert_same_bits(monkeypatch: pytest.MonkeyPatch, compute: Callable[[], Sequence[np.ndarray]]) -> None:
    """Assert that results do not depend on the number of multiprocessors or the order of blocks and threads."""
    found = []
    for multiprocessors, seed in ((1, 1), (5, 2)):
        monkeypatch.setenv("RTF_EMULATION_SMS", str(multiprocessors))
        monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
        found.append(compute())
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


def _converted(x: Any) -> Any:
    if x is None:
        return None
    if isinstance(x, np.ndarray):
        return pointer(x)
    return ctypes.c_int(x) if isinstance(x, (int, np.integer)) else x
