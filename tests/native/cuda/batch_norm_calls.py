"""Calls the kernels of batch normalisation through their C interface: in the emulator, and those for the CPU."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from tests.native.cuda.activate_calls import FUNCTIONS
from tests.native.cuda.calls import empty, on_cpu, on_gpu, scratch


class Shape(ctypes.Structure):
    _fields_ = [("rows", ctypes.c_int64), ("width", ctypes.c_int64), ("epsilon", ctypes.c_float)]
    _fields_ += [("function", ctypes.c_int), ("mask", ctypes.c_void_p)]


def arrays(rows: int, width: int, with_params: bool = True) -> tuple[Optional[np.ndarray], ...]:
    """Return x, dy, scale and shift."""
    rng = np.random.RandomState(1)
    shapes = ((rows, width), (rows, width), (width,), (width,))
    x, dy, scale, shift = (rng.normal(0.3, 1, shape).astype("float32") for shape in shapes)
    return (x, dy, scale, shift) if with_params else (x, dy, None, None)


def computed(
    library: ctypes.CDLL, function: str, mask: Optional[np.ndarray], x: Any, dy: Any, scale: Any, shift: Any,
    in_place: bool = False,
) -> list[np.ndarray]:  # fmt: skip
    """Return mean, variance, y, dx, dscale, dshift, by the kernels that the library has.

    :param mask: uint8 [rows], or None
    :param in_place: y takes the place of x, and dx that of dy
    """
    host = not hasattr(library, "rtf_batch_norm_cuda_f32")
    (rows, width), side, call = x.shape, "" if host else "_cuda", on_cpu if host else on_gpu
    shape = Shape(rows, width, 1e-2, FUNCTIONS.index(function), None if mask is None else mask.ctypes.data)
    y, dx = (x.copy(), dy.copy()) if in_place else (empty(rows, width), empty(rows, width))
    mean, variance, dscale, dshift = (empty(width) for _ in range(4))
    columns, size = (mean, variance, scale, shift), "rtf_batch_norm%s_scratch_size" % side
    call(library, "rtf_batch_moments%s_f32" % side, shape, x, mean, variance, scratch(library, size, shape))
    call(library, "rtf_batch_norm%s_f32" % side, shape, y if in_place else x, *columns, y)
    given = (dx if in_place else dy, x, *columns, dx, dscale, dshift, scratch(library, size, shape))
    call(library, "rtf_batch_norm_grad%s_f32" % side, shape, *given)
    return [mean, variance, y, dx, dscale, dshift]
