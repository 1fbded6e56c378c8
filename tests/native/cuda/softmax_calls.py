"""Calls the kernels of the softmax over many labels through their C interface: in the emulator and on the CPU."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.native.cuda.calls import empty, on_cpu, on_gpu

#: on, off (times the other labels), entropy, focal
SPECS = [(1.0, 0.0, 0.0, 0.0), (0.9, 0.1, 0.0, 0.0), (0.9, 0.1, 0.5, 1.5)]


class Shape(ctypes.Structure):
    _fields_ = [("frames", ctypes.c_int64), ("labels", ctypes.c_int64)]
    _fields_ += [(name, ctypes.c_float) for name in ("on", "off", "entropy", "focal")]


def computed(
    library: ctypes.CDLL, z: Any, bias: Any, target: Any, spec: Any, *, in_place: bool = False, gradient: bool = True
) -> list[np.ndarray]:
    """Return values, errors and the gradient, by the kernel that the library has."""
    host = hasattr(library, "rtf_softmax_ce_f32")
    frames, labels = z.shape
    on, off, entropy, focal = spec
    shape = Shape(frames, labels, on, off / max(labels - 1, 1), entropy, focal)
    z = z.copy()
    values, errors, dz = empty(frames), empty(frames), z if in_place else empty(frames, labels)
    (on_cpu if host else on_gpu)(
        library, "rtf_softmax_ce_f32" if host else "rtf_softmax_ce_cuda_f32", shape, z, bias, target, values, errors,
        dz if gradient else None,
    )  # fmt: skip
    return [values, errors, *([dz] if gradient else [])]


def inputs(frames: int, labels: int) -> tuple[Any, Any, Any]:
    """Return logits, bias and target."""
    rng = np.random.RandomState(1)
    target = rng.randint(0, labels, frames).astype("int32")
    return rng.normal(0, 3, (frames, labels)).astype("float32"), rng.normal(0, 1, labels).astype("float32"), target
