"""Recurrences for the tests of their kernels: f64 references with gradients, and calls of the C interfaces."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Optional

import numpy as np

from tests.native import reference
from tests.native.cuda.memory import STREAM, HostMemory

Array = np.ndarray
#: ``RtfNumbers``
FLOAT, TF32, BFLOAT16, FLOAT16 = range(4)
DTYPES = {FLOAT: "float32", TF32: "float32", BFLOAT16: "bfloat16", FLOAT16: "float16"}
#: of values, of gradients
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
    """Return the struct of the sequences; ``lengths`` (int32) has to stay alive."""
    return Sequences(n_frames, batch, units, None if lengths is None else lengths.ctypes.data, int(reverse))


def to_memory(numbers: int, x: Array) -> Array:
    """Return floats as they are stored in a type of numbers."""
    return HostMemory().upload(x, DTYPES[numbers])


def from_memory(numbers: int, x: Array) -> Array:
    """Return the floats that are stored so."""
    return HostMemory().download(x, DTYPES[numbers]).astype("float32")


class Kernels:
    """The C functions of one recurrence.

    :param name: as in ``rtf_<name>_forward_cuda``
    """

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.name = name
        self._size = getattr(library, "rtf_%s_cuda_workspace" % name)
        self._size.restype = ctypes.c_char_p
        self._passes = [getattr(library, "rtf_%s_%s_cuda" % (name, part)) for part in ("forward", "backward")]
        for function in self._passes:
            function.restype = ctypes.c_char_p

    def workspace_bytes(self, shape: Sequences, numbers: int, backward: bool) -> int:
        """Return what a pass needs.

        :raises ValueError: with the text of the error
        """
        size = ctypes.c_int64()
        error = self._size(ctypes.byref(shape), numbers, int(backward), ctypes.byref(size))
        if error is not None:
            raise ValueError(error.decode())
        return size.value

    def launch(
        self,
        shape: Sequences,
        numbers: int,
        backward: bool,
        pointers: Sequence[int],
        workspace: int,
        stream: int = STREAM,
    ) -> None:
        """Begin a pass.

        :param pointers: of all arrays, in the order of the C function
        :raises ValueError: with the text of the error
        """
        args = [ctypes.c_void_p(pointer) for pointer in (*pointers, workspace, stream)]
        error = self._passes[backward](ctypes.byref(shape), numbers, *args)
        if error is not None:
            raise ValueError(error.decode())

    def call(
        self,
        shape: Sequences,
        numbers: int,
        backward: bool,
        inputs: Sequence[Array],
        outputs: Sequence[tuple[int, ...]],
    ) -> list[Array]:
        """Run a pass in the emulator on floats; outputs are full of NaN before it."""
        memory = [to_memory(numbers, x) for x in inputs]
        results = [to_memory(numbers, np.full(size, np.nan)) for size in outputs]
        self.call_on(shape, numbers, backward, memory + results)
        return [from_memory(numbers, x) for x in results]

    def call_on(self, shape: Sequences, numbers: int, backward: bool, arrays: Sequence[Array]) -> None:
        """Run a pass in the emulator on arrays in memory."""
        size = self.workspace_bytes(shape, numbers, backward)
        workspace = np.full(size // 4 + 64, np.nan, "float32")
        start = -workspace.ctypes.data % 256
        pointers = [x.ctypes.data for x in arrays]
        self.launch(shape, numbers, backward, pointers, workspace.ctypes.data + start)
        assert np.isnan(workspace[(start + size) // 4 :]).all(), "the pass wrote beyond its workspace"


def each_step(
    lengths: Sequence[int], reverse: bool, step: Callable[[int, int, bool], None], back: bool = False
) -> None:
    """Call ``step(b, t, first)`` for all frames of all sequences in the order in which they run, or backwards."""
    for b, length in enumerate(lengths):
        order = list(range(length))[:: -1 if reverse else 1]
        for t in order[::-1] if back else order:
            step(b, t, t == order[0])


@dataclass
class Case:
    """A call: what the kernels get and what they have to give."""

    inputs: list[Array]  # of forward
    outputs: list[Array]  # of forward, expected
    for_backward: Callable[[list[Array]], list[Array]]  # its inputs, given what forward gave
    gradients: list[Array]  # outputs of backward, expected


def lstm_case(draw: Callable[..., Array], size: tuple[int, int, int], lengths: Array, reverse: bool) -> Case:
    """Return an LSTM; the forward pass is that of `tests.native.reference.lstm`."""
    n_frames, batch, units = size
    z, w_re = draw(n_frames, batch, 4 * units), draw(units, 4 * units, scale=units**-0.5)
    c0, h0, dh, dc_last, dh_last = (draw(*s) for s in ((batch, units),) * 2 + (size,) + ((batch, units),) * 2)
    gates, c = np.zeros(z.shape), np.zeros(size)
    h, c_last, h_last = reference.lstm(z, w_re, c0, h0, lengths, reverse)
    shift = 1 if reverse else -1
    dz, dc, dh_state = np.zeros(z.shape), dc_last.astype("float64"), dh_last.astype("float64")

    def forward(b: int, t: int, first: bool) -> None:
        c_before, h_before = (c0[b], h0[b]) if first else (c[t + shift, b], h[t + shift, b])
        a = z[t, b] + h_before @ w_re
        gates[t, b] = np.concatenate([np.tanh(a[:units]), reference.sigmoid(a[units:])])
        j, i, f, _ = np.split(gates[t, b], 4)
        c[t, b] = f * c_before + i * j

    def backward(b: int, t: int, first: bool) -> None:
        j, i, f, o = np.split(gates[t, b], 4)
        dh_now, tanh_c = dh[t, b] + dh_state[b], np.tanh(c[t, b])
        dc_now = dc[b] + dh_now * o * (1 - tanh_c**2)
        c_before = c0[b] if first else c[t + shift, b]
        parts = [dc_now * i * (1 - j * j), dc_now * j * i * (1 - i), dc_now * c_before * f * (1 - f)]
        dz[t, b] = np.concatenate([*parts, dh_now * tanh_c * o * (1 - o)])
        dc[b] = dc_now * f
        dh_state[b] = w_re @ dz[t, b]

    each_step(lengths, reverse, forward)
    each_step(lengths, reverse, backward, back=True)
    return Case(
        inputs=[z, w_re, c0, h0],
        outputs=[h, c, gates, c_last, h_last],
        for_backward=lambda out: [w_re, c0, out[1], out[2], dh, dc_last, dh_last],
        gradients=[dz, dc, dh_state],
    )


def gru_case(draw: Callable[..., Array], size: tuple[int, int, int], lengths: Array, reverse: bool) -> Case:
    """Return a GRU; see ``native_ops/gru/gru.h``."""
    n_frames, batch, units = size
    z, w_gates = draw(n_frames, batch, 3 * units), draw(units, 2 * units, scale=units**-0.5)
    w_candidate = draw(units, units, scale=units**-0.5)
    h0, dh, dh_last = draw(batch, units), draw(*size), draw(batch, units)
    gates, h, h_last = np.zeros(z.shape), np.zeros(size), h0.astype("float64")
    dz, reset_h, dh_state = np.zeros(z.shape), np.zeros(size), dh_last.astype("float64")
    shift = 1 if reverse else -1

    def forward(b: int, t: int, first: bool) -> None:
        r, u = np.split(reference.sigmoid(z[t, b, : 2 * units] + h_last[b] @ w_gates), 2)
        reset_h[t, b] = r * h_last[b]
        c = np.tanh(z[t, b, 2 * units :] + reset_h[t, b] @ w_candidate)
        gates[t, b] = np.concatenate([r, u, c])
        h[t, b] = h_last[b] = u * h_last[b] + (1 - u) * c

    def backward(b: int, t: int, first: bool) -> None:
        r, u, c = np.split(gates[t, b], 3)
        before, dh_now = h0[b] if first else h[t + shift, b], dh[t, b] + dh_state[b]
        da_c = dh_now * (1 - u) * (1 - c * c)
        d_reset = w_candidate @ da_c
        da_ru = np.concatenate([d_reset * before * r * (1 - r), dh_now * (before - c) * u * (1 - u)])
        dz[t, b] = np.concatenate([da_ru, da_c])
        dh_state[b] = dh_now * u + d_reset * r + w_gates @ da_ru

    each_step(lengths, reverse, forward)
    each_step(lengths, reverse, backward, back=True)
    return Case(
        inputs=[z, w_gates, w_candidate, h0],
        outputs=[h, gates, h_last],
        for_backward=lambda out: [w_gates, w_candidate, h0, out[0], out[1], dh, dh_last],
        gradients=[dz, reset_h, dh_state],
    )


CASES = {"lstm": lstm_case, "gru": gru_case}


def ragged(n_frames: int, batch: int, seed: int = 1) -> Array:
    """Return the lengths: the first is whole, the second empty."""
    lengths = np.random.RandomState(seed).randint(0, n_frames + 1, batch).astype("int32")
    lengths[:1], lengths[1:2] = n_frames, 0
    return lengths


def run(
    kernels: Kernels, size: tuple[int, int, int], numbers: int, lengths: Optional[Array], reverse: bool, seed: int = 1
) -> tuple[list[Array], list[Array], list[Array]]:
    """Return both passes, with NaN in all padding: what they give, what is expected, how far they may be apart."""
    n_frames, batch, _ = size
    rng = np.random.RandomState(seed)

    def draw(*shape: int, scale: float = 1.0) -> Array:
        return from_memory(numbers, to_memory(numbers, rng.normal(0, scale, shape)))

    whole = np.full(batch, n_frames, "int32") if lengths is None else lengths
    case = CASES[kernels.name](draw, size, whole, reverse)
    padded = np.arange(n_frames)[:, None] >= whole
    shape = sequences(*size, lengths, reverse)

    def dirty(x: Array) -> Array:
        return np.where(padded[..., None], np.nan, x) if x.shape[:2] == padded.shape and x.ndim == 3 else x

    forward = kernels.call(shape, numbers, False, [dirty(x) for x in case.inputs], [x.shape for x in case.outputs])
    inputs = [dirty(x) for x in case.for_backward(forward)]
    backward = kernels.call(shape, numbers, True, inputs, [x.shape for x in case.gradients])
    tolerances = [TOLERANCES[numbers][0]] * len(forward) + [TOLERANCES[numbers][1]] * len(backward)
    return forward + backward, case.outputs + case.gradients, tolerances


def check(kernels: Kernels, size: tuple[int, int, int], numbers: int = FLOAT, *, dense: bool = False, reverse: bool = False, seed: int = 1) -> list[Array]:  # fmt: skip  # noqa: E501
    """Compare both passes with the reference; what they give."""
    results, expected, tolerances = run(
        kernels, size, numbers, None if dense else ragged(*size[:2], seed), reverse, seed
    )
    for result, value, tolerance in zip(results, expected, tolerances):
        np.testing.assert_allclose(result, value, atol=tolerance, rtol=tolerance)
    return results
