"""Bias, activation, dropout, residual connection and gates on an emulated GPU: what the kernels for the CPU compute."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.native.cuda.activate_calls import FUNCTIONS, Inputs, assert_same, computed
from tests.native.cuda.build import build_emulated
from tests.native.cuda.calls import ALONE, IN_STREAM, assert_same_bits, empty

pytestmark = pytest.mark.slow  # compiles kernels for the emulator

#: Rows and width: the cases of the test on the CPU; columns of several blocks, with and without a rest, where random
#: numbers of rows begin within a group of four; rows of several blocks.
SIZES = [(15, 130), (0, 4), (1, 1), (7, 3), (130, 67), (5, 256), (37, 131)]
#: What there is beside x: bias, factors, residual connection, rate of the dropout, numbers of rows.
PARTS = [
    (False, False, False, 0.0, False), (True, False, False, 0.0, False), (True, False, False, 0.3, False),
    (True, True, True, 0.2, False), (False, False, True, 0.5, True), (True, True, False, 0.0, False),
]  # fmt: skip


@pytest.fixture(scope="module")
def gpu():
    return build_emulated("activate/activate_cuda.cu")


@pytest.fixture(scope="module")
def cpu():
    return build_emulated("activate/activate_cpu.cc", "-O2")


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_on_the_cpu(gpu, cpu, function, parts):
    inputs = Inputs((6, 131), function, *parts)
    assert_same(computed(gpu, inputs), computed(cpu, inputs))


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(gpu, cpu, size, numbers):
    inputs = Inputs(size, "swish", numbers=numbers)
    assert_same(computed(gpu, inputs), computed(cpu, inputs))


@pytest.mark.parametrize("function, rate", [("relu", 0.3), ("relu", 0.0), ("tanh", 0.0), ("sigmoid", 0.0)])
def test_gradient_by_the_output(gpu, cpu, function, rate):
    inputs = Inputs((5, 140), function, True, function == "relu", False, rate)
    found = computed(gpu, inputs, of_output=True)
    assert_same(found, computed(cpu, inputs, of_output=True))
    assert_same(found, computed(gpu, inputs))


@pytest.mark.parametrize("function", ["identity", "gelu"])
def test_in_place(gpu, function):
    """Of the gradient, dx may be dy; kept is another array."""
    inputs = Inputs((5, 140), function)
    for one, other in zip(computed(gpu, inputs, in_place=True), computed(gpu, inputs)):
        np.testing.assert_array_equal(one, other)


def test_sums_have_the_same_bits(gpu, monkeypatch):
    assert_same_bits(monkeypatch, lambda: computed(gpu, Inputs((70, 67), "gelu")))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_extreme_numbers_as_on_the_cpu(gpu, cpu, function):
    inputs = Inputs((1, 8), function, False, False, False, 0.0)
    inputs.x = np.array([[np.nan, np.inf, -np.inf, 3e38, -3e38, 89, -89, 1]], "float32")
    found = computed(gpu, inputs)
    assert_same(found, computed(cpu, inputs))
    assert np.isnan(found[0][0, 0]) and found[0][0, 7] > 0


@pytest.mark.parametrize("rows, width", [(3, 130), (0, 2), (20, 5)])
@pytest.mark.parametrize("f, g", [(f, (f + 1) % 6) for f in range(6)] + [(0, 5)])
def test_gates(gpu, cpu, f, g, rows, width):
    rng = np.random.RandomState(1)
    x, dy = (rng.normal(0, 1, (rows, n)).astype("float32") for n in (2 * width, width))
    found = []
    for library, side, last in ((gpu, "_cuda", IN_STREAM), (cpu, "", ctypes.byref(ALONE))):
        y, dx = empty(rows, width), empty(rows, 2 * width)
        for name, arrays in (("gate", (x, y)), ("gate_grad", (x, dy, dx))):
            function = getattr(library, "rtf_%s%s_f32" % (name, side))
            function.restype = ctypes.c_char_p if side else None
            sizes = [ctypes.c_int64(rows), ctypes.c_int64(width), ctypes.c_int(f), ctypes.c_int(g)]
            assert function(*sizes, *[ctypes.c_void_p(array.ctypes.data) for array in arrays], last) is None
        found.append((y, dx))
    assert_same(*found)
