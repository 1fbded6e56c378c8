"""Calls the kernels of activations and dropout through their C interface: in the emulator, and those for the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from tests.native.cuda.calls import empty, on_cpu, on_gpu, scratch

FUNCTIONS = ("identity", "relu", "gelu", "swish", "tanh", "sigmoid")
KEY, COUNTER = np.array([77 << 33 | 5], "uint64"), np.array([2**64 - 9, 3], "uint64")  # a counter that overflows


class Shape(ctypes.Structure):
    _fields_ = [("rows", ctypes.c_int64), ("width", ctypes.c_int64), ("function", ctypes.c_int)]
    _fields_ += [("rate", ctypes.c_float), ("scale", ctypes.c_float), ("key", ctypes.c_uint64)]
    _fields_ += [("counter", ctypes.c_uint64 * 2), ("numbers", ctypes.c_void_p)]


class Inputs:
    """Arrays of a case, and its shape for both sides."""

    def __init__(
        self, size: tuple[int, int], function: str, bias: bool = True, factors: bool = True, residual: bool = True,
        rate: float = 0.3, numbers: bool = False,
    ) -> None:  # fmt: skip
        rng = np.random.RandomState(1)
        self.x, self.dy, residuals = (rng.normal(0, 1, size).astype("float32") for _ in range(3))
        biases, scales = (rng.uniform(0, 1, size[1:]).astype("float32") for _ in range(2))
        self.bias, self.factors, self.residual = (
            x if there else None for x, there in ((biases, bias), (scales, factors), (residuals, residual))
        )
        self.numbers = rng.permutation(2 * size[0])[: size[0]].astype("int64")
        self.function, self.rate, self.of_rows = FUNCTIONS.index(function), rate, numbers

    def shape(self, host: bool) -> Shape:
        """Return the structure; the kernels for GPUs are given the generator apart from it."""
        numbers = self.numbers.ctypes.data if self.of_rows else None
        state = (KEY[0], (ctypes.c_uint64 * 2)(*map(int, COUNTER))) if host else (0, (ctypes.c_uint64 * 2)())
        return Shape(*self.x.shape, self.function, self.rate, 1 / (1 - self.rate), int(state[0]), state[1], numbers)


def computed(library: ctypes.CDLL, inputs: Inputs, of_output: bool = False, in_place: bool = False) -> list[np.ndarray]:
    """Return y, dx, and dbias if there is a bias, by the kernels that the library has.

    :param of_output: the gradient is given the output
    :param in_place: y takes the place of x, and dx that of dy
    """
    host = not hasattr(library, "rtf_activate_cuda_f32")
    side, call, shape = "" if host else "_cuda", on_cpu if host else on_gpu, inputs.shape(host)
    random = [] if host else [KEY, COUNTER] if inputs.rate else [None, None]
    y, dx = (inputs.x.copy(), inputs.dy.copy()) if in_place else (empty(*inputs.x.shape), empty(*inputs.x.shape))
    dbias = empty(inputs.x.shape[1]) if inputs.bias is not None else None
    params = (inputs.bias, inputs.factors)
    x = y if in_place else inputs.x
    call(library, "rtf_activate%s_f32" % side, shape, *random, x, *params, inputs.residual, y)
    kept = None if inputs.function == 0 else y if of_output else inputs.x
    parts = scratch(library, "rtf_activate%s_scratch_size" % side, shape)
    given = (dx if in_place else inputs.dy, kept, int(of_output), *params, dx, dbias, parts)
    call(library, "rtf_activate_grad%s_f32" % side, shape, *random, *given)
    return [y, dx] + ([] if dbias is None else [dbias])


def assert_same(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Compare results."""
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-5)
