"""Calls of the C interfaces of the scans with a matrix as state, on the CPU and on an emulated GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from tests.native.cuda.calls import ALONE, IN_STREAM, pointer, pointers
from tests.native.cuda.memory import HostMemory
from tests.native.cuda.recurrences import Array, Sequences, sequences


class Shape(ctypes.Structure):
    """``RtfMatrixScanShape``, and with a field less ``RtfDeltaScanShape``."""

    _fields_ = [
        ("sequences", Sequences),
        *((name, ctypes.c_int64) for name in ("keys", "values", "decays")),
        ("exclusive", ctypes.c_int),
    ]


class Scans:
    """Both passes of a scan.

    :param library: with its kernels
    :param name: "matrix" or "delta"
    :param on_gpu: whether they are those for GPUs
    """

    def __init__(self, library: ctypes.CDLL, name: str, on_gpu: bool) -> None:
        self.library, self.name, self.on_gpu = library, name, on_gpu

    def run(
        self,
        inputs: Sequence[Array],
        lengths: Sequence[int],
        d_o: Array,
        d_last: Array,
        *,
        reverse: bool = False,
        exclusive: bool = False,
    ) -> list[Array]:
        """Return all results and gradients; NaN where a kernel has written nothing.

        :param inputs: q, k, v, (a, b,) g, first; log decays are the last but one
        :raises ValueError: with the text of the error
        """
        inputs = [np.ascontiguousarray(x, "float32") for x in inputs]
        d_o, d_last = (np.ascontiguousarray(x, "float32") for x in (d_o, d_last))
        q, _, v = inputs[:3]
        whole = np.array(lengths, "int32")
        shape = Shape(
            sequences(*q.shape[:3], whole, reverse), q.shape[3], v.shape[3], inputs[-2].shape[3], int(exclusive)
        )
        empty = HostMemory().empty
        last, gradients = empty(d_last.shape), [empty(x.shape) for x in inputs]
        if self.name == "matrix":
            o = empty(v.shape)
            self._call("forward", shape, [*map(pointer, [*inputs, o, last])])
            self._call("backward", shape, [*map(pointer, [*inputs, last, d_o, d_last, *gradients])])
            return [o, last, *gradients]
        o, u = empty(v.shape), empty(v.shape)
        self._call("forward", shape, [pointers(inputs), *map(pointer, [o, u, last])])
        scratch = []
        if self.on_gpu:
            size = self.library.rtf_delta_scan_cuda_scratch_size
            size.restype = ctypes.c_int64
            scratch = [empty([size(ctypes.byref(shape))])]
        given = [*map(pointer, [u, last, d_o, d_last]), pointers(gradients), *map(pointer, scratch)]
        self._call("backward", shape, [pointers(inputs), *given])
        return [o, u, last, *gradients]

    def _call(self, which: str, shape: Shape, arguments: list) -> None:  # type: ignore[type-arg]
        function = getattr(self.library, "rtf_%s_scan_%s%s_f32" % (self.name, which, "_cuda" if self.on_gpu else ""))
        function.restype = ctypes.c_char_p if self.on_gpu else None
        error = function(ctypes.byref(shape), *arguments, IN_STREAM if self.on_gpu else ctypes.byref(ALONE))
        if error is not None:
            raise ValueError(error.decode())
