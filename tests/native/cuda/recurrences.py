"""Recurrences for the tests of their kernels: f64 references with gradients, and calls of the C interfaces."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy

from tests.native.reference import sigmoid

Array = numpy.ndarray
#: name -> number in the C interface, how a float gets into memory, tolerances of values and gradients
FLOAT, TF32, BFLOAT16, FLOAT16 = range(4)
TOLERANCES = {FLOAT: (3e-6, 1e-5), TF32: (4e-3, 2e-2), BFLOAT16: (2e-2, 8e-2), FLOAT16: (3e-3, 1e-2)}


class Sequences(ctypes.Structure):
    """``RtfSequences``."""

    _fields_ = [
        ("frames", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("units", ctypes.c_int64),
        ("lengths", ctypes.c_void_p),
        ("reverse", ctypes.c_int),
    ]


def sequences(n_frames: int, batch: int, units: int, lengths: Optional[Array], reverse: bool) -> Sequences:
    """``lengths`` (int32) has to stay alive."""
    return Sequences(n_frames, batch, units, None if lengths is None else lengths.ctypes.data, int(reverse))


def to_memory(numbers: int, x: Array) -> Array:
    """Floats as they lie in the memory of a kind of numbers."""
    x = numpy.ascontiguousarray(x, "float32")
    if numbers == BFLOAT16:
        bits = x.view("uint32")
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return numpy.where(numpy.isnan(x), 0x7FC0, rounded).astype("uint16")
    return x.astype("float16") if numbers == FLOAT16 else x.copy()


def from_memory(numbers: int, x: Array) -> Array:
    """The other way round."""
    return (x.astype("uint32") << 16).view("float32") if numbers == BFLOAT16 else x.astype("float32")


class Kernels:
    """The C functions of one recurrence, whose arrays are in the memory of this process as in the emulator.

    :param name: as in ``rtf_<name>_forward_cuda``
    """

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._size = getattr(library, "rtf_%s_cuda_workspace" % name)
        self._size.restype = ctypes.c_int64
        self._passes = [getattr(library, "rtf_%s_%s_cuda" % (name, part)) for part in ("forward", "backward")]
        for function in self._passes:
            function.restype = ctypes.c_char_p

    def call(
        self,
        shape: Sequences,
        numbers: int,
        backward: bool,
        inputs: Sequence[Array],
        outputs: Sequence[Tuple[int, ...]],
    ) -> List[Array]:
        """Run a pass on floats; outputs are full of NaN before it.

        :raises ValueError: with the text of the error
        """
        memory = [to_memory(numbers, x) for x in inputs]
        results = [to_memory(numbers, numpy.full(size, numpy.nan)) for size in outputs]
        self.call_on(shape, numbers, backward, memory + results)
        return [from_memory(numbers, x) for x in results]

    def call_on(self, shape: Sequences, numbers: int, backward: bool, arrays: Sequence[Array]) -> None:
        """Run a pass on arrays in memory."""
        size = self._size(ctypes.byref(shape), numbers, int(backward))
        workspace = numpy.full(max(size, 0) // 4 + 64, numpy.nan, "float32")
        start = -workspace.ctypes.data % 256
        args: List[Any] = [ctypes.c_void_p(x.ctypes.data) for x in arrays]
        error = self._passes[backward](
            ctypes.byref(shape), numbers, *args, ctypes.c_void_p(workspace.ctypes.data + start), None
        )
        if error is not None:
            raise ValueError(error.decode())
        assert numpy.isnan(workspace[(start + size) // 4 :]).all(), "the pass wrote beyond its workspace"


def each_step(
    lengths: Sequence[int], reverse: bool, step: Callable[[int, int, bool], None], back: bool = False
) -> None:
    """Calls ``step(b, t, first)`` for all frames of all sequences in the order in which they run, or backwards."""
    for b, length in enumerate(lengths):
        order = list(range(length))[:: -1 if reverse else 1]
        for t in order[::-1] if back else order:
            step(b, t, t == order[0])


def lstm_gradients(z, w_re, c0, h0, lengths, reverse, dh, dc_last, dh_last):
    """Of `tests.native.reference.lstm`: gates [T, B, 4H], c [T, B, H]; then dz, dc0, dh0."""
    units, shape = w_re.shape[0], dh.shape
    shift = 1 if reverse else -1
    gates, c, h = numpy.zeros(z.shape), numpy.zeros(shape), numpy.zeros(shape)

    def forward(b: int, t: int, first: bool) -> None:
        before = (c0[b], h0[b]) if first else (c[t + shift, b], h[t + shift, b])
        a = z[t, b] + before[1] @ w_re
        gates[t, b] = numpy.concatenate([numpy.tanh(a[:units]), sigmoid(a[units:])])
        j, i, f, o = numpy.split(gates[t, b], 4)
        c[t, b] = f * before[0] + i * j
        h[t, b] = o * numpy.tanh(c[t, b])

    dz, dc, dh_state = numpy.zeros(z.shape), dc_last.astype("float64"), dh_last.astype("float64")

    def backward(b: int, t: int, first: bool) -> None:
        j, i, f, o = numpy.split(gates[t, b], 4)
        dh_now, tanh_c = dh[t, b] + dh_state[b], numpy.tanh(c[t, b])
        dc_now = dc[b] + dh_now * o * (1 - tanh_c**2)
        c_before = c0[b] if first else c[t + shift, b]
        parts = [dc_now * i * (1 - j * j), dc_now * j * i * (1 - i), dc_now * c_before * f * (1 - f)]
        dz[t, b] = numpy.concatenate([*parts, dh_now * tanh_c * o * (1 - o)])
        dc[b] = dc_now * f
        dh_state[b] = w_re @ dz[t, b]

    each_step(lengths, reverse, forward)
    each_step(lengths, reverse, backward, back=True)
    return gates, c, dz, dc, dh_state
