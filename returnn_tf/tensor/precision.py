"""The float type of the network that is being planned or computed: the setting ``float_dtype``."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

FLOAT_DTYPES = ("float32", "float64")

_in_use: contextvars.ContextVar[str] = contextvars.ContextVar("float dtype in use", default="float32")


@contextlib.contextmanager
def using_float_dtype(dtype: str) -> Iterator[None]:
    """Make this the type of all floats within the context whose type nothing else determines."""
    token = _in_use.set(dtype)
    try:
        yield
    finally:
        _in_use.reset(token)


def float_dtype() -> str:
    """Return the type of floats whose type nothing else determines, e.g. of parameters: "float32" or "float64"."""
    return _in_use.get()
