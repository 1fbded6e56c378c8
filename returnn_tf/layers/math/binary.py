"""The operations of two operands that the layers `combine` and `compare` know by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from returnn_tf.util.lazy_tf import tf

Binary = Callable[[Any, Any], Any]

#: Comparisons by name: their result is bool.
COMPARISONS: Mapping[str, Binary] = {
    "equal": lambda a, b: tf.equal(a, b),
    "not_equal": lambda a, b: tf.not_equal(a, b),
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
}

_OWN: dict[str, Binary] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "truediv": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: tf.math.floormod(a, b),
    "pow": lambda a, b: a**b,
    "maximum": lambda a, b: tf.maximum(a, b),
    "minimum": lambda a, b: tf.minimum(a, b),
    "logical_and": lambda a, b: tf.logical_and(a, b),
    "logical_or": lambda a, b: tf.logical_or(a, b),
    "squared_difference": lambda a, b: tf.math.squared_difference(a, b),
    "logaddexp": lambda a, b: tf.maximum(a, b) + tf.math.log1p(tf.exp(-tf.abs(a - b))),
    "average": lambda a, b: a + b,
    "div": lambda a, b: a // b if a.dtype.is_integer else a / b,
}
_SIGNS = {"+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow"}
#: Functions of two tensors in ``tf.math``, ``tf`` or ``tf.compat.v1``.
_OF_TF = (
    "subtract", "multiply", "divide", "realdiv", "truncatediv", "floor_div", "divide_no_nan", "div_no_nan",
    "multiply_no_nan", "floormod", "truncatemod", "atan2", "xdivy", "xlogy", "xlog1py", "igamma", "igammac", "zeta",
    "polygamma", "nextafter", "complex", "logical_xor",
)  # fmt: skip

#: Of floats only: TensorFlow refuses integers, or gives floats for them.
_OF_FLOATS = frozenset((
    "truediv", "/", "divide", "realdiv", "average", "logaddexp", "divide_no_nan", "div_no_nan", "multiply_no_nan",
    "atan2", "xdivy", "xlogy", "xlog1py", "igamma", "igammac", "zeta", "polygamma", "nextafter", "complex",
))  # fmt: skip

#: What these names mean where they are the kind of a `combine` layer.
KINDS = (*_OWN, *_SIGNS, *COMPARISONS, *_OF_TF)


def is_logical(kind: str) -> bool:
    """Return whether an operation needs bool operands."""
    return kind.startswith("logical_")


def takes_any(kind: str) -> bool:
    """Return whether an operation takes bool operands as well as numbers."""
    return kind in ("equal", "not_equal")


def takes_ints(kind: str) -> bool:
    """Return whether the result of integers is of integers."""
    return kind not in _OF_FLOATS


def result_dtype(kind: str, dtype: str) -> str:
    """Return the dtype of the result for operands of a dtype."""
    if kind in COMPARISONS:
        return "bool"
    if kind == "complex":
        return "complex128" if dtype == "float64" else "complex64"
    return dtype


def is_associative(kind: str) -> bool:
    """Return whether the result can be an operand again, so that there may be more than two."""
    return result_dtype(kind, "float32") == "float32"


def binary(kind: str) -> Binary:
    """Return the operation."""
    kind = _SIGNS.get(kind, kind)
    found = _OWN.get(kind) or COMPARISONS.get(kind)
    if found is not None:
        return found
    homes = (tf.math, tf, tf.compat.v1)
    function: Binary = next(getattr(home, kind) for home in homes if hasattr(home, kind))
    return function
