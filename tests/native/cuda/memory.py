"""Where the arrays of a kernel are: on the CPU for the emulator, or on a GPU through PyTorch; with the same methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

#: The stream of an op in the emulator (``emulation/runtime.h``), which refuses work on another one.
STREAM = 0x100


class HostMemory:
    """The memory of the CPU, which is also that of the emulated GPU. Types: those of numpy, and "bfloat16"."""

    stream = STREAM

    def upload(self, x: Any, dtype: str = "float32") -> Any:
        """Return a copy of an array."""
        if dtype != "bfloat16":
            return np.array(x, dtype, order="C")
        bits = np.array(x, "float32", order="C").view("uint32")
        rounded = bits + 0x7FFF + (bits >> 16 & 1)
        return np.where(np.isnan(x), 0x7FC0, rounded >> 16).astype("uint16")

    def empty(self, shape: Sequence[int], dtype: str = "float32") -> Any:
        """Return an array that a kernel has to write: all bits are set, so that its numbers are NaN."""
        x = np.empty(shape, "uint16" if dtype == "bfloat16" else dtype)
        x.reshape(-1).view("uint8")[:] = 255
        return x

    def pointer(self, x: Any) -> int:
        """Return the pointer to the first entry."""
        return x.ctypes.data

    def download(self, x: Any, dtype: str = "float32") -> np.ndarray:
        """As an array of numpy that no kernel changes; bfloat16 becomes float32."""
        if dtype == "bfloat16":
            return (x.astype("uint32") << 16).view("float32")
        return np.array(x)

    def finish(self) -> None:
        """Wait for what was launched."""


class GpuMemory:
    """The memory of a GPU, by PyTorch.

    :param torch: the module
    """

    stream = 0  # PyTorch's is the default one

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def upload(self, x: Any, dtype: str = "float32") -> Any:
        """Return a copy of an array."""
        return self._torch.from_numpy(np.ascontiguousarray(x)).to("cuda", getattr(self._torch, dtype))

    def empty(self, shape: Sequence[int], dtype: str = "float32") -> Any:
        """Return an array that a kernel has to write: all bits are set, so that its numbers are NaN."""
        x = self._torch.empty(tuple(shape), dtype=getattr(self._torch, dtype), device="cuda")
        x.view(-1).view(self._torch.uint8).fill_(255)
        return x

    def pointer(self, x: Any) -> int:
        """Return the pointer to the first entry."""
        return x.data_ptr()

    def download(self, x: Any, dtype: str = "float32") -> np.ndarray:
        """As an array of numpy; bfloat16 becomes float32."""
        return (x.float() if dtype == "bfloat16" else x).cpu().numpy()

    def finish(self) -> None:
        """Wait for what was launched."""
        self._torch.cuda.synchronize()
