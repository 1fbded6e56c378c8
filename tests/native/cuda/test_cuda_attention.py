"""The kernels of attention for GPUs in the emulator: what those for the CPU give, in all of their cases."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests.native.attention_cases import CASES, SIZES
from tests.native.cuda.attention_calls import BFLOAT16, FLOAT, PASSES, TF32, Kernels, arrays, packed
from tests.native.cuda.build import build_emulated
from tests.native.cuda.memory import HostMemory

pytestmark = pytest.mark.slow  # compiles kernels for the emulator


@pytest.fixture(scope="module")
def libraries() -> list[ctypes.CDLL]:
    return [build_emulated("attention/%s_cuda.cu" % name) for name in PASSES]


@pytest.fixture(scope="module")
def cpu() -> Kernels:
    return Kernels([build_emulated("attention/%s_cpu.cc" % name, "-O2") for name in PASSES])


def check(kernels: Kernels, cpu: Kernels, inputs: Any, tolerance: float = 1e-5, **options: Any) -> None:
    for got, expected in zip(kernels(*inputs, **options), cpu(*inputs, **options)):
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max(initial=1e-9))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu(libraries, cpu, case, sizes):
    options = dict(CASES[case])
    inputs = packed(*sizes, options.pop("clipping", None), len(options.get("lengths", [1])))
    check(Kernels(libraries, FLOAT), cpu, inputs, **options)


@pytest.mark.parametrize("numbers, low, high", [(TF32, 5e-5, 2e-3), (BFLOAT16, 1e-3, 2e-2)])
@pytest.mark.parametrize("case", ["ragged", "everything"])
def test_fewer_digits(libraries, cpu, case, numbers, low, high):
    """Close to float, but not the same."""
    options = dict(CASES[case])
    inputs = packed(*SIZES[0], options.pop("clipping", None))
    got, expected = Kernels(libraries, numbers)(*inputs, **options), cpu(*inputs, **options)
    for a, b in zip(got, expected):
        if b.size:  # else there is no table
            assert low < np.abs(a - b).max() / np.abs(b).max() < high


def test_factors_are_bfloat16(libraries):
    """What is rounded before gives the same bits."""
    inputs, memory = packed(70, 1, 5, 3, 2, batch=1), HostMemory()
    rounded = [memory.download(memory.upload(x, "bfloat16"), "bfloat16") for x in inputs]
    run = Kernels(libraries, BFLOAT16)
    for a, b in zip(run(*inputs, dropout=0.3), run(*rounded, dropout=0.3)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("key,value", [(70, 5), (3, 130), (66, 66)])
def test_long_vectors(libraries, cpu, key, value):
    """More numbers than a tile has, of keys, of values and of both; with each number of keys around that of a tile."""
    for keys in (63, 65):
        q, k, v, table = arrays((1, 5, 1, key), (1, keys, 1, key), (1, keys, 1, value), (5, key))
        check(Kernels(libraries, FLOAT), cpu, [q, k, v, table], dropout=0.5)


def test_fewer_queries_than_keys(libraries, cpu):
    """Apart, as an encoder and a decoder give them; and no queries, sequences or keys at all."""
    for queries, keys, lengths in [((2, 5), (2, 70), [70, 3]), ((2, 0), (2, 70), [1, 2]), ((0, 5), (0, 3), []),
                                   ((1, 2), (1, 0), [0])]:  # fmt: skip
        inputs = arrays(*((*shape, 2, 6) for shape in (queries, keys, keys)))
        check(Kernels(libraries, FLOAT), cpu, inputs, lengths=lengths)


def test_lengths_of_nobody(libraries, cpu):
    """Lengths that a GPU can't check are those of all keys, or none."""
    inputs = packed(6, 1, 3, 4, None)
    got = Kernels(libraries, FLOAT)(*inputs, lengths=[7, -1, 3])
    for a, b in zip(got, Kernels(libraries, FLOAT)(*inputs, lengths=[6, 0, 3])):
        np.testing.assert_array_equal(a, b)


def test_padding_is_not_read(libraries):
    """Also if it is not a number."""
    run, lengths = Kernels(libraries, FLOAT), [5, 9]
    q, k, v = arrays((2, 4, 1, 3), (2, 9, 1, 3), (2, 9, 1, 3))
    good = run(q, k, v, lengths=lengths)
    k[0, 5:], v[0, 5:] = np.nan, np.nan
    for a, b in zip(good, run(q, k, v, lengths=lengths)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("numbers", [FLOAT, TF32, BFLOAT16])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_stays(libraries, numbers, bad):
    """For the checks of the training."""
    q, k, v = arrays((1, 20, 1, 3), (1, 20, 1, 3), (1, 20, 1, 3))
    q[0, 7, 0, 1] = bad
    y, *gradients, _ = Kernels(libraries, numbers)(q, k, v)
    assert np.isnan(y[0, 7]).all() and not np.isnan(y[0, 8:]).any()
    assert all(np.isnan(gradient).any() for gradient in gradients)


def test_any_order_of_threads(libraries, monkeypatch):
    """The same bits."""
    options = dict(CASES["everything"])
    inputs = packed(70, 1, 5, 3, options.pop("clipping"), batch=1)
    results = []
    for seed in (1, 2, 3):
        monkeypatch.setenv("RTF_EMULATION_SEED", str(seed))
        results.append(Kernels(libraries, TF32)(*inputs, **options))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            np.testing.assert_array_equal(a, b)
