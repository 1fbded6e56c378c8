"""Tensors from numpy arrays, without TensorFlow's memory leak.

``tf.convert_to_tensor`` leaks some 340 bytes per array on Python 3.11 and later (tensorflow issue 62551): 1 kB per
training step. DLPack does not, and takes a tenth of the time.
"""

from __future__ import annotations

import functools
import mmap
import os
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.util.lazy_tf import tf

_ALIGNMENT = 64  # bytes; alignment that TensorFlow kernels expect
_DTYPES = frozenset(["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16"])


class SharedMemory(mmap.mmap):
    """Memory shared with a loading process, which an array of a batch has for itself."""

    #: File descriptor, closed along with the memory unless somebody else took it.
    fd: Optional[int] = None

    def __del__(self) -> None:
        if self.fd is not None:
            os.close(self.fd)


def host_tensor(array: NDArray[Any], dtype: Any) -> Any:
    """Return a tensor with a copy of an array; one that has shared memory for itself is not copied.

    :param array: of a type that can be cast to ``dtype``
    :param dtype: ``tf.DType``
    """
    name = dtype.name
    if name not in _DTYPES or not array.size or _has_gpu():
        return tf.convert_to_tensor(array.astype(dtype.as_numpy_dtype, copy=False))
    if not isinstance(array.base, SharedMemory) or array.dtype.name != name or not array.flags.c_contiguous:
        array = _aligned_copy(array, name)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _aligned_copy(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    wanted = np.dtype(dtype)
    size = array.size * wanted.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + size].view(wanted).reshape(array.shape)
    np.copyto(copy, array, casting="unsafe")
    return copy


@functools.cache
def _has_gpu() -> bool:
    """Return whether tensors belong on a GPU: DLPack would leave them on the host, to be copied in each step."""
    return bool(tf.config.list_logical_devices("GPU"))
