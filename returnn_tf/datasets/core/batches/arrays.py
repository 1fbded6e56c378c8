"""Where the padded arrays of batches are allocated: as usual, or where a loading process wants them."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

Allocate = Callable[[tuple[int, ...], Any], NDArray[Any]]

_ALLOCATE: contextvars.ContextVar[Allocate] = contextvars.ContextVar("allocation of batches", default=np.zeros)


def new_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array of zeros."""
    return _ALLOCATE.get()(shape, dtype)


@contextlib.contextmanager
def allocating(allocate: Allocate) -> Iterator[None]:
    """Let `new_array` call this function, in this thread, while the context is open."""
    token = _ALLOCATE.set(allocate)
    try:
        yield
    finally:
        _ALLOCATE.reset(token)
