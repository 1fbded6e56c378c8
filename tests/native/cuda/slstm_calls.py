"""Calls of the C interfaces of the sLSTM, on the CPU and on an emulated GPU."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from tests.native.cuda.calls import ALONE, IN_STREAM, pointer, pointers
from tests.native.cuda.memory import HostMemory
from tests.native.cuda.recurrences import FLOAT, Array, sequences

#: of a state: c, n, m, h
PARTS = 4
#: The argument of the CPU's kernels that leaves the factors of products in float.
_UNROUNDED = 0


class SLstm:
    """Both passes for one head.

    :param library: with the kernels
    :param on_gpu: whether they are those for GPUs
    """

    def __init__(self, library: ctypes.CDLL, on_gpu: bool) -> None:
        self.library, self.on_gpu = library, on_gpu

    def memory(self, shape: Any, numbers: int, backward: bool) -> Array:
        """Return the workspace or the scratch memory, full of NaN.

        :raises ValueError: with the text of the error
        """
        if not self.on_gpu:
            size = self.library.rtf_slstm_scratch_size
            size.restype = ctypes.c_int64
            return HostMemory().empty([size(ctypes.byref(shape), _UNROUNDED) + 16])
        n_bytes, size = ctypes.c_int64(), self.library.rtf_slstm_cuda_workspace
        size.restype = ctypes.c_char_p
        _raise_if(size(ctypes.byref(shape), numbers, int(backward), ctypes.byref(n_bytes)))
        memory = HostMemory().empty([n_bytes.value // 4 + 64])
        start = -memory.ctypes.data % 256 // 4
        return memory[start : start + n_bytes.value // 4]

    def call(self, which: str, shape: Any, numbers: int, exp_forget: bool, arguments: list[Any]) -> None:
        """Run a pass.

        :raises ValueError: with the text of the error
        """
        memory = self.memory(shape, numbers, which == "backward")
        if self.on_gpu:
            function = getattr(self.library, "rtf_slstm_%s_cuda" % which)
            function.restype = ctypes.c_char_p
            _raise_if(function(ctypes.byref(shape), numbers, int(exp_forget), *arguments, pointer(memory), IN_STREAM))
        else:
            function = getattr(self.library, "rtf_slstm_%s_f32" % which)
            given = [int(exp_forget), *arguments, pointer(memory), ctypes.byref(ALONE)]
            function(ctypes.byref(shape), _UNROUNDED, *given)

    def run(
        self,
        size: tuple[int, int, int],
        lengths: Optional[Array],
        numbers: int = FLOAT,
        *,
        reverse: bool = False,
        exp_forget: bool = False,
        in_place: bool = False,
        scale: float = 1.0,
    ) -> list[Array]:
        """Return states, gates, the last state and all gradients, for random input with NaN in the padding."""
        n_frames, batch, n = size
        rng = np.random.RandomState(1)
        whole = np.full(batch, n_frames) if lengths is None else lengths
        padded = (np.arange(n_frames)[:, None] >= whole)[..., None]

        def draw(*shape: int, by: float = 1.0) -> Array:
            return rng.normal(0, by, shape).astype("float32")

        z, r = np.where(padded, np.float32(np.nan), draw(n_frames, batch, 4 * n, by=2 * scale)), draw(n, 4 * n, by=0.5)
        initial = [draw(batch, n) for _ in range(PARTS)]
        initial[1] = np.exp(initial[1])
        dh, dlast = np.where(padded, np.float32(np.nan), draw(*size)), [draw(batch, n) for _ in range(PARTS)]
        empty = HostMemory().empty
        states, last, dinitial = ([empty(s) for _ in range(PARTS)] for s in (size, (batch, n), (batch, n)))
        shape, gates = sequences(*size, lengths, reverse), z if in_place else empty(z.shape)
        given = [pointer(z), pointer(r), pointers(initial), pointers(states), pointer(gates), pointers(last)]
        self.call("forward", shape, numbers, exp_forget, given)
        kept = gates.copy()
        dz = gates if in_place else empty(z.shape)
        given = [pointers(initial), pointers(states), pointer(gates), pointer(dh), pointers(dlast)]
        self.call("backward", shape, numbers, exp_forget, [pointer(r), *given, pointer(dz), pointers(dinitial)])
        return [*states, kept, *last, dz, *dinitial]


def _raise_if(error: Optional[bytes]) -> None:
    if error is not None:
        raise ValueError(error.decode())
