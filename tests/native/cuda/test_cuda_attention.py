"""The kernels of attention for GPUs in the emulator: what those for the CPU give, in all of their cases."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import pytest

from tests.native.attention_cases import CASES, SIZES
from tests.native.cuda.build import HERE, SANITIZERS, build_emulated, check_without_spills, run_sanitized
from tests.native.cuda.calls import ALONE, empty

pytestmark = pytest.mark.slow  # compiles kernels for the emulator

FLOAT, TF32 = 0, 1
PASSES = ("attention", "attention_grad")


class Vectors(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "time", "head"))]

    @classmethod
    def of(cls, x: np.ndarray) -> Vectors:
        """Return those of an array [batch, time, heads, size], whose vectors are dense."""
        return cls(x.ctypes.data, *(step // x.itemsize for step in x.strides[:3]))


class Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys", "key_size", "value_size")),
        ("lengths", ctypes.c_void_p), ("causal", ctypes.c_int), ("scale", ctypes.c_float), ("clipping", ctypes.c_int64),
        ("table", ctypes.c_void_p), ("dropout", ctypes.c_float), ("key", ctypes.c_uint64),
        ("counter", ctypes.c_uint64 * 2),
    ]  # fmt: skip


class Kernels:
    """Both passes on one kind of device.

    :param libraries: with the forward pass, and the backward pass
    :param numbers: of the products on a GPU; None: those for the CPU
    """

    def __init__(self, libraries: Sequence[ctypes.CDLL], numbers: Optional[int] = None) -> None:
        self._libraries = libraries
        self._numbers = numbers

    def __call__(self, q: Any, k: Any, v: Any, table: Any = None, lengths: Any = None, **options: Any) -> list[Any]:
        """Return y and the gradients of q, k, v and the table, [batch, heads, distances, key] for that.

        :param q: [batch, time, heads, size], like the others; may be a part of a larger array
        """
        (batch, queries, heads, key), keys = q.shape, k.shape[1]
        lengths = None if lengths is None else np.array(lengths, "int32")
        shape = Shape(
            batch, heads, queries, keys, key, v.shape[3], None if lengths is None else lengths.ctypes.data,
            options.get("causal", False), key**-0.5, 0 if table is None else len(table) // 2,
            None if table is None else table.ctypes.data, options.get("dropout", 0), 2**63 + 5,
            (2**64 - 700, 9),
        )  # fmt: skip
        y, log_sums = np.full((batch, queries, heads, v.shape[3]), np.nan, "float32"), empty(batch, heads, queries)
        dy = np.sin(np.arange(y.size, dtype="float32")).reshape(y.shape)
        gradients = [np.full_like(x, np.nan) for x in (q, k, v)]
        d_tables = empty(batch, heads, 0 if table is None else len(table), key)
        self._run(0, shape, [q, k, v, y], log_sums)
        self._run(1, shape, [q, k, v, y], log_sums, [dy, *gradients], d_tables)
        return [y, *gradients, d_tables]

    def _run(self, which: int, shape: Shape, before: Any, log_sums: Any, after: Any = (), d_tables: Any = None) -> None:
        library, last = self._libraries[which], [] if d_tables is None else [pointer(d_tables)]
        middle = [*(ctypes.byref(Vectors.of(x)) for x in before), pointer(log_sums)]
        middle += [ctypes.byref(Vectors.of(x)) for x in after]
        on_gpu = self._numbers is not None
        kind = "_cuda" if on_gpu else ""
        size = getattr(library, "rtf_attention_%s%s_scratch" % (("forward", "grad")[which], kind))
        size.restype = ctypes.c_int64
        scratch = empty(size(ctypes.byref(shape), *([] if on_gpu else [1])))
        run = getattr(library, "rtf_%s%s_f32" % (PASSES[which], kind))
        run.restype = ctypes.c_char_p if on_gpu else None
        end = [ctypes.c_int(self._numbers), None] if on_gpu else [ctypes.byref(ALONE)]
        error = run(ctypes.byref(shape), *middle, *last, pointer(scratch), *end)
        assert not error, error


def pointer(x: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


@pytest.fixture(scope="module")
def libraries() -> list[ctypes.CDLL]:
    return [build_emulated("attention/%s_cuda.cu" % name) for name in PASSES]


@pytest.fixture(scope="module")
def cpu() -> Kernels:
    return Kernels([build_emulated("attention/%s_cpu.cc" % name, "-O2") for name in PASSES])


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.RandomState(1)
    return [rng.normal(0, 1, shape).astype("float32") for shape in shapes]


def packed(frames: int, heads: int, size: int, value: int, clipping: Optional[int], batch: int = 3) -> list[Any]:
    """Return queries, keys and values that are parts of one array, and the table if there is a clipping."""
    x, table = arrays((batch, frames, heads, 2 * size + value), (2 * (clipping or 0) + 1, size))
    parts = [x[..., :size], x[..., size : 2 * size], x[..., 2 * size :]]
    return parts if clipping is None else [*parts, table]


def check(kernels: Kernels, cpu: Kernels, inputs: Any, tolerance: float = 1e-5, **options: Any) -> None:
    for got, expected in zip(kernels(*inputs, **options), cpu(*inputs, **options)):
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max(initial=1e-9))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu(libraries, cpu, case, sizes):
    options = dict(CASES[case])
    inputs = packed(*sizes, options.pop("clipping", None), len(options.get("lengths", [1])))
    check(Kernels(libraries, FLOAT), cpu, inputs, **options)


@pytest.mark.parametrize("case", ["ragged", "everything"])
def test_tf32(libraries, cpu, case):
    """Close to float, but not the same."""
    options = dict(CASES[case])
    inputs = packed(*SIZES[0], options.pop("clipping", None))
    got, expected = Kernels(libraries, TF32)(*inputs, **options), cpu(*inputs, **options)
    for a, b in zip(got, expected):
        assert 1e-5 < np.abs(a - b).max(initial=1e-4) / np.abs(b).max(initial=1.0) < 1e-2


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


@pytest.mark.parametrize("numbers", [FLOAT, TF32])
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


@pytest.mark.long
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("name", PASSES)
def test_nvcc(name, arch):
    check_without_spills("attention/%s_cuda.cu" % name, arch)


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_sanitizers(sanitizer):
    run_sanitized(os.path.join(HERE, "sanitized_attention.cu"), sanitizer=sanitizer)
