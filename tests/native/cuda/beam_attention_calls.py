"""Calls the kernels of attention in a search through their C interface: in the emulator, and those for the CPU."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from tests.native.cuda.calls import empty, on_cpu, on_gpu


class InPlaceShape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("entries", "steps", "heads", "key", "value")]


class OnceShape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "beam", "frames", "heads", "size")]


def in_place(
    library: ctypes.CDLL,
    shape: tuple[int, int, int, int, int],
    *,
    with_shift: bool = False,
    copies: bool = False,
    rows: Optional[np.ndarray] = None,
) -> list[np.ndarray]:
    """Return y, keys, values and the next rows of a step, by the kernel that the library has.

    :param shape: entries, steps before, heads, sizes of a key and of a value
    :param copies: the frames before are not where those after the step are
    :param rows: default: any
    """
    s = InPlaceShape(*shape)
    rng = np.random.RandomState(1)
    room = s.steps + 2
    sizes = [(s.entries, s.heads * (2 * s.key + s.value)), (room, s.entries, s.heads * s.key)]
    sizes += [(room, s.entries, s.heads * s.value), (s.steps + 1, s.key)]
    qkv, keys, values, shift = (rng.normal(0, 1, size).astype("float32") for size in sizes)
    keys[s.steps :] = values[s.steps :] = np.nan  # there is room for frames, but they are not there
    if rows is None:
        rows = rng.randint(0, s.entries, (s.entries, s.steps)).astype("int32")
    y, given_shift = empty(s.entries, s.heads * s.value), shift if with_shift else None
    if not hasattr(library, "rtf_beam_attention_cuda_f32"):
        on_cpu(library, "rtf_beam_attention_f32", s, qkv, rows, given_shift, keys, values, y)
        return [y, keys, values, np.concatenate([rows, np.arange(s.entries, dtype="int32")[:, None]], axis=1)]
    before = [keys, values]
    if copies:
        keys, values = (np.full_like(x, np.nan) for x in before)
    next_rows = np.full((s.entries, s.steps + 1), -1, "int32")
    arrays = (qkv, rows, given_shift, *before, keys, values, y, next_rows)
    on_gpu(library, "rtf_beam_attention_cuda_f32", s, *arrays)
    return [y, keys, values, next_rows]


def once(
    library: ctypes.CDLL,
    shape: tuple[int, int, int, int, int],
    value: int,
    lengths: Optional[Any] = None,
    *,
    bad: Optional[int] = None,
) -> np.ndarray:
    """Return the result of attention to frames of a sequence, by the kernel that the library has.

    :param shape: sequences, hypotheses of each, frames, heads, size of a key
    :param bad: entry whose query is NaN
    """
    s, rng = OnceShape(*shape), np.random.RandomState(1)
    entries = s.batch * s.beam
    sizes = [(entries, s.heads, s.size), (s.batch, s.frames, s.heads, s.size), (s.batch, s.frames, s.heads, value)]
    arrays = [rng.normal(0, 1, size).astype("float32") for size in sizes]
    if bad is not None:
        arrays[0][bad] = np.nan
    arrays += [None if lengths is None else np.asarray(lengths, "int32"), empty(entries, s.heads, value)]
    numbers = (ctypes.c_int64(value), ctypes.c_float(0.3))
    if hasattr(library, "rtf_once_attention_cuda_f32"):
        on_gpu(library, "rtf_once_attention_cuda_f32", s, *numbers, *arrays)
    else:
        on_cpu(library, "rtf_once_attention_f32", s, *numbers, *arrays)
    return arrays[-1]
