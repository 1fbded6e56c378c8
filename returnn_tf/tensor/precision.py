"""The float types of the network that is being planned or computed: the settings float_dtype and mixed_precision."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Optional

_floats: contextvars.ContextVar[str] = contextvars.ContextVar("float dtype in use", default="float32")
_products: contextvars.ContextVar[Optional[str]] = contextvars.ContextVar("product dtype in use", default=None)


@contextlib.contextmanager
def using_precision(floats: str, products: Optional[str]) -> Iterator[None]:
    """Make these the types within the context: see `float_dtype` and `product_dtype`."""
    tokens = _floats.set(floats), _products.set(products)
    try:
        yield
    finally:
        _floats.reset(tokens[0])
        _products.reset(tokens[1])


def float_dtype() -> str:
    """Return the type of floats whose type nothing else determines, e.g. of parameters: "float32" or "float64"."""
    return _floats.get()


def product_dtype() -> Optional[str]:
    """Return the type in which products of float32 and their activations are computed, or None: in float32."""
    return _products.get()
