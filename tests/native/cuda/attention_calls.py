"""Calls the kernels of attention through their C interface: in the emulator, and those for the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from tests.native.cuda.calls import ALONE, IN_STREAM, empty, pointer

FLOAT, TF32, BFLOAT16 = 0, 1, 2
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
        ("table", ctypes.c_void_p), ("rounded", ctypes.c_int), ("dropout", ctypes.c_float), ("key", ctypes.c_uint64),
        ("counter", ctypes.c_uint64 * 2),
    ]  # fmt: skip


class Kernels:
    """Both passes on one kind of device.

    :param libraries: with the forward pass, and the backward pass
    :param numbers: of the products on a GPU, `BFLOAT16` for factors that are rounded; None: those for the CPU
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
            None if table is None else table.ctypes.data, self._numbers == BFLOAT16, options.get("dropout", 0),
            2**63 + 5, (2**64 - 700, 9),
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
        end = [ctypes.c_int(self._numbers), IN_STREAM] if on_gpu else [ctypes.byref(ALONE)]
        error = run(ctypes.byref(shape), *middle, *last, pointer(scratch), *end)
        assert not error, error


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.RandomState(1)
    return [rng.normal(0, 1, shape).astype("float32") for shape in shapes]


def packed(frames: int, heads: int, size: int, value: int, clipping: Optional[int], batch: int = 3) -> list[Any]:
    """Return queries, keys and values that are parts of one array, and the table if there is a clipping."""
    x, table = arrays((batch, frames, heads, 2 * size + value), (2 * (clipping or 0) + 1, size))
    parts = [x[..., :size], x[..., size : 2 * size], x[..., 2 * size :]]
    return parts if clipping is None else [*parts, table]
