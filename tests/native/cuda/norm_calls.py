"""Calls the kernels of layer normalisation through their C interface: in the emulator, and those for the CPU."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import numpy as np

from tests.native.cuda.calls import empty, on_cpu, on_gpu, scratch


class Shape(ctypes.Structure):
    _fields_ = [("rows", ctypes.c_int64), ("width", ctypes.c_int64), ("epsilon", ctypes.c_float)]


def arrays(rows: int, width: int, with_params: bool = True) -> tuple[Optional[np.ndarray], ...]:
    """Return x, dy, scale and bias."""
    rng = np.random.RandomState(1)
    shapes = ((rows, width), (rows, width), (width,), (width,))
    x, dy, scale, bias = (rng.normal(0.3, 1, shape).astype("float32") for shape in shapes)
    return (x, dy, scale, bias) if with_params else (x, dy, None, None)


def computed(library: ctypes.CDLL, x: Any, dy: Any, scale: Any, bias: Any, in_place: bool = False) -> list[np.ndarray]:
    """Return y, mean, factor, dx, dscale, dbias, by the kernels that the library has.

    :param in_place: y takes the place of x, and dx that of dy
    """
    host = not hasattr(library, "rtf_norm_cuda_f32")
    (rows, width), side, call = x.shape, "" if host else "_cuda", on_cpu if host else on_gpu
    shape = Shape(rows, width, 1e-3)
    y, dx = (x.copy(), dy.copy()) if in_place else (empty(rows, width), empty(rows, width))
    mean, factor, dscale, dbias = empty(rows), empty(rows), empty(width), empty(width)
    call(library, "rtf_norm%s_f32" % side, shape, y if in_place else x, scale, bias, y, mean, factor)
    room = scratch(library, "rtf_norm%s_scratch_size" % side, shape)
    given = (dx if in_place else dy, x, scale, mean, factor, dx, dscale, dbias, room)
    call(library, "rtf_norm_grad%s_f32" % side, shape, *given)
    return [y, mean, factor, dx, dscale, dbias]
