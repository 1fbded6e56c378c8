"""Calls the kernels of depthwise convolutions through their C interface: in the emulator, and those for the CPU."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.native.cuda.calls import empty, on_cpu, on_gpu, scratch


class Shape(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64) for name in ("batch", "frames", "out_frames", "channels", "taps", "dilation", "left")
    ]


def shape_of(
    batch: int, frames: int, channels: int, taps: int, dilation: int = 1, left: int = 0, right: int = 0
) -> Shape:
    """Return the structure of a convolution with zeros in front of the frames and behind them."""
    out_frames = max(0, frames + left + right - (taps - 1) * dilation)
    return Shape(batch, frames, out_frames, channels, taps, dilation, left)


def arrays(s: Shape) -> tuple[np.ndarray, ...]:
    """Return x, w, bias and dy."""
    rng = np.random.RandomState(1)
    shapes = ((s.batch, s.frames, s.channels), (s.taps, s.channels), (s.channels,), (s.batch, s.out_frames, s.channels))
    return tuple(rng.normal(0.1, 0.5, shape).astype("float32") for shape in shapes)


def computed(library: ctypes.CDLL, s: Shape, x: Any, w: Any, bias: Any, dy: Any) -> list[np.ndarray]:
    """Return y, dx, dw, dbias, by the kernels that the library has."""
    host = not hasattr(library, "rtf_depthwise_cuda_f32")
    y, dx, dw, dbias = empty(*dy.shape), empty(*x.shape), empty(*w.shape), empty(s.channels)
    if host:
        size = library.rtf_depthwise_scratch_size
        size.restype = ctypes.c_int64
        room = empty(size(ctypes.byref(s), 1))
        on_cpu(library, "rtf_depthwise_f32", s, x, w, bias, y, room)
        sums = scratch(library, "rtf_depthwise_sums_size", s)
        on_cpu(library, "rtf_depthwise_grad_f32", s, dy, x, w, dx, dw, dbias, sums, room)
    else:
        on_gpu(library, "rtf_depthwise_cuda_f32", s, x, w, bias, y)
        room = scratch(library, "rtf_depthwise_cuda_scratch_size", s)
        on_gpu(library, "rtf_depthwise_grad_cuda_f32", s, dy, x, w, dx, dw, dbias, room)
    return [y, dx, dw, dbias]
