"""`portable_ops`: a context in which native ops take their form in plain TensorFlow, so that graphs need no library."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_PORTABLE: contextvars.ContextVar[bool] = contextvars.ContextVar("portable_ops", default=False)


@contextlib.contextmanager
def portable_ops() -> Iterator[None]:
    """Emit plain TensorFlow ops only, in this thread, while the context is open.

    Graphs traced in it need no library. It does not change graphs that exist.
    """
    token = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(token)


def in_portable_ops() -> bool:
    """Return whether native ops must not be emitted."""
    return _PORTABLE.get()
