"""Calls the kernels of the MDLSTM through their C interface: in the emulator, on a GPU, and those for CPU."""

from __future__ import annotations

import concurrent.futures
import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from tests.native.cuda.calls import RUN, Threads
from tests.native.cuda.memory import HostMemory

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}
#: The argument of the CPU's kernels that leaves the factors of products in float.
_UNROUNDED = 0


def _struct(name: str, **fields: Any) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


Shape = _struct(
    "Shape", batch=_LONG, rows=_LONG, columns=_LONG, units=_LONG, heights=_POINTER, widths=_POINTER, stable=_INT
)
Limits = _struct("Limits", multiprocessors=_INT, shared_bytes=_LONG)
Plan = _struct(
    "Plan", per_diagonal=_INT, groups=_INT, slices=_INT, units_of_slice=_INT, threads=_INT, shared_bytes=_LONG,
    workspace_bytes=_LONG,
)  # fmt: skip
# What each array of a direction is, and how many numbers it has for each pixel and unit; None: the weights.
FORWARD: dict[str, Optional[int]] = {"z": 5, "r": None, "h": 1, "c": 1, "gates": 5}
BACKWARD: dict[str, Optional[int]] = {"r": None, "h": 1, "c": 1, "gates": 5, "dh": 1, "dz": 5, "before": 2}
RESULTS = ("h", "c", "gates", "dz", "before")


class Images(NamedTuple):
    """Sizes and inputs: of each direction z [B, Y, X, 5 n], r [2 n, 5 n] and dh [B, Y, X, n]."""

    heights: np.ndarray
    widths: np.ndarray
    flips: Sequence[tuple[bool, bool]]
    z: list[np.ndarray]
    r: list[np.ndarray]
    dh: list[np.ndarray]

    def shape(self, stable: bool) -> Any:
        """Return the shape for the kernels."""
        pointers = [x.ctypes.data for x in (self.heights, self.widths)]
        return Shape(*self.z[0].shape[:3], len(self.r[0]) // 2, *pointers, stable)


class _Arrays:
    """What both kinds of kernels have in common: the arrays of all directions.

    :param in_place: gates lie where z is, and dz where the gates are
    """

    def __init__(self, images: Images, stable: bool, memory: Any, dtype: str, in_place: bool) -> None:
        self.images, self.memory, self.dtype, self.count = images, memory, dtype, len(images.flips)
        self.shape = images.shape(stable)
        n, grid = self.shape.units, images.z[0].shape[:3]
        self.arrays: list[dict[str, Any]] = []
        for z, r, dh in zip(images.z, images.r, images.dh):
            mine = {name: memory.upload(x, dtype) for name, x in (("z", z), ("r", r), ("dh", dh))}
            mine.update({name: memory.empty((*grid, width * n), dtype) for name, width in (("h", 1), ("c", 1))})
            mine["gates"] = mine["z"] if in_place else memory.empty((*grid, 5 * n), dtype)
            mine["dz"] = mine["z"] if in_place else memory.empty((*grid, 5 * n), dtype)
            mine["before"] = memory.empty((*grid, 2 * n), dtype)
            self.arrays.append(mine)

    def directions(self, names: dict[str, Optional[int]]) -> Any:
        """Return an array of the structs of a pass."""
        one = _struct("Direction", flip_rows=_INT, flip_columns=_INT, **dict.fromkeys(names, _POINTER))
        pointers = [[self.memory.pointer(mine[name]) for name in names] for mine in self.arrays]
        return (one * self.count)(*(one(*flips, *each) for flips, each in zip(self.images.flips, pointers)))

    def results(self, names: Sequence[str] = RESULTS) -> dict[str, list[np.ndarray]]:
        """Return what is in the arrays of each direction now."""
        self.memory.finish()
        return {name: [self.memory.download(mine[name], self.dtype) for mine in self.arrays] for name in names}


class GpuRun(_Arrays):
    """The kernels for GPUs.

    :param library: has ``mdlstm_cuda.cu``
    :param memory: where they run
    :param limits: what they may use; None: the device
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        images: Images,
        stable: bool = True,
        *,
        memory: Any = None,
        dtype: str = "float32",
        in_place: bool = False,
        limits: Any = None,
    ) -> None:
        super().__init__(images, stable, memory or HostMemory(), dtype, in_place)
        self._library = library
        self.plans = [plan(library, self.shape, self.count, backward, limits) for backward in (False, True)]
        self._passes = [
            ("rtf_mdlstm_%s_cuda" % name, self.directions(fields), each, self._workspace(each))
            for (name, fields), each in zip((("forward", FORWARD), ("backward", BACKWARD)), self.plans)
        ]

    def _workspace(self, of: Any) -> tuple[Any, int]:
        memory = self.memory.empty((of.workspace_bytes + 256,), "uint8")
        return memory, (self.memory.pointer(memory) + 255) // 256 * 256

    def forward(self) -> None:
        """Run the forward pass."""
        self._launch(*self._passes[0])

    def backward(self) -> None:
        """Run the backward pass."""
        self._launch(*self._passes[1])

    def _launch(self, name: str, directions: Any, of: Any, workspace: tuple[Any, int]) -> None:
        arguments = (ctypes.byref(self.shape), _LONG(self.count), directions, TYPES[self.dtype], ctypes.byref(of))
        check(_function(self._library, name)(*arguments, _POINTER(workspace[1]), _POINTER(self.memory.stream)))


class CpuRun(_Arrays):
    """The kernels for CPU.

    :param library: has ``mdlstm_cpu.cc``
    """

    def __init__(self, library: ctypes.CDLL, images: Images, stable: bool = True, *, threads: int = 1) -> None:
        super().__init__(images, stable, HostMemory(), "float32", False)
        self._library = library
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)
        self._threads = Threads(RUN(self._run), None, threads)
        library.rtf_mdlstm_scratch_size.restype = _LONG
        size = library.rtf_mdlstm_scratch_size(_LONG(self.shape.units), _UNROUNDED, _LONG(self.count))
        self._scratch = np.empty(size, "float32")

    def _run(self, _: Any, n_tasks: int, task: Any, arg: Any) -> None:
        list(self._pool.map(lambda index: task(arg, index), range(n_tasks)))

    def forward(self) -> None:
        """Run the forward pass."""
        self._call("rtf_mdlstm_forward_f32", FORWARD)

    def backward(self) -> None:
        """Run the backward pass."""
        self._call("rtf_mdlstm_backward_f32", BACKWARD)

    def _call(self, name: str, fields: dict[str, Optional[int]]) -> None:
        arguments = (ctypes.byref(self.shape), _UNROUNDED, _LONG(self.count), self.directions(fields))
        function = getattr(self._library, name)
        function.restype = None
        function(*arguments, _POINTER(self._scratch.ctypes.data), ctypes.byref(self._threads))


def plan(library: ctypes.CDLL, shape: Any, count: int, backward: bool, limits: Any = None) -> Any:
    """Return the plan for a pass.

    :raises RuntimeError: the library refuses
    """
    result = Plan()
    given = None if limits is None else ctypes.byref(limits)
    function = _function(library, "rtf_mdlstm_cuda_plan")
    check(function(ctypes.byref(shape), _LONG(count), int(backward), given, ctypes.byref(result)))
    return result


def check(error: Optional[bytes]) -> None:
    """Raise what a function returned.

    :raises RuntimeError: it is not None
    """
    if error is not None:
        raise RuntimeError(error.decode())


def _function(library: ctypes.CDLL, name: str) -> Any:
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    return function
