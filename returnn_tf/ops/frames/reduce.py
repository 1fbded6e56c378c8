"""Masked reductions over several axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from returnn_tf.ops.frames.shape import size_of
from returnn_tf.util.lazy_tf import tf


class _Mode(NamedTuple):
    """A TF function by name, and the neutral element for masked entries: a number, "lowest" or "highest"."""

    function: str
    fill: Any


_MODES: dict[str, _Mode] = {
    "sum": _Mode("reduce_sum", 0),
    "mean": _Mode("reduce_mean", 0),
    "max": _Mode("reduce_max", "lowest"),
    "min": _Mode("reduce_min", "highest"),
    "prod": _Mode("reduce_prod", 1),
    "logsumexp": _Mode("reduce_logsumexp", "lowest"),
    "any": _Mode("reduce_any", False),
    "all": _Mode("reduce_all", True),
    "argmax": _Mode("argmax", "lowest"),
    "argmin": _Mode("argmin", "highest"),
}
#: Other names of modes.
ALIASES = {"avg": "mean", "average": "mean"}
#: All names of modes.
REDUCE_MODES: list[str] = sorted([*_MODES, *ALIASES])


def is_arg_mode(mode: str) -> bool:
    """Return whether the result is an index."""
    return mode.startswith("arg")


def canonical_mode(mode: str) -> str:
    """Return the mode in lower case, aliases resolved. It may be unknown."""
    mode = mode.lower()
    return ALIASES.get(mode, mode)


def masked_reduce(mode: str, x: Any, axes: Sequence[int], mask: Optional[Any] = None, *, keepdims: bool = False) -> Any:
    """Reduce some axes over the entries in the mask.

    Without any entry a sum is 0, a mean 0, a maximum the lowest number of the dtype.

    :param mode: key of the modes above, canonical; "argmax" and "argmin" take a single axis and give int32
    :param x: tensor [...]
    :param mask: bool, broadcasts to ``x``; None: all entries
    """
    entry = _MODES[mode]
    axes = list(axes)
    if mask is not None:
        x = fill_masked(x, mask, entry.fill)
    if is_arg_mode(mode):
        (axis,) = axes
        y = getattr(tf, entry.function)(x, axis=axis, output_type=tf.int32)
        return tf.expand_dims(y, axis) if keepdims else y
    if mode == "mean" and mask is not None:
        total = tf.reduce_sum(x, axis=axes, keepdims=keepdims)
        count = masked_count(x, axes, mask, keepdims=keepdims)
        count = tf.where(tf.equal(count, 0), tf.ones_like(count), count)
        return total // count if x.dtype.is_integer else total / count
    return getattr(tf, entry.function)(x, axis=axes, keepdims=keepdims)


def fill_masked(x: Any, mask: Any, fill: Any) -> Any:
    """Replace the entries outside of the mask.

    :param fill: number, or "lowest" or "highest" of the dtype
    """
    if isinstance(fill, str):
        fill = x.dtype.min if fill == "lowest" else x.dtype.max
    return tf.where(mask, x, tf.constant(fill, dtype=x.dtype))


def masked_count(x: Any, axes: Sequence[int], mask: Any, *, keepdims: bool = False) -> Any:
    """Count the entries of ``x`` in the mask by reduction over the axes; in the dtype of ``x``.

    :param mask: bool of the rank of ``x``; axes where it does not differ have the static size 1
    """
    count = tf.reduce_sum(tf.cast(mask, x.dtype), axis=list(axes), keepdims=keepdims)
    for axis in axes:
        if mask.shape[axis] == 1:
            count = count * tf.cast(size_of(x, axis), x.dtype)
    return count


def p_norm(x: Any, p: float, axes: Sequence[int], mask: Optional[Any] = None, *, keepdims: bool = False) -> Any:
    """Compute ``sum(|x| ** p) ** (1 / p)``, the largest ``|x|`` for infinite p; the gradient at 0 is 0.

    :param p: positive
    """
    x = tf.abs(x)
    if mask is not None:
        x = fill_masked(x, mask, 0)
    if p == float("inf"):
        return tf.reduce_max(x, axis=list(axes), keepdims=keepdims)
    if p == 1:
        return tf.reduce_sum(x, axis=list(axes), keepdims=keepdims)
    total = tf.reduce_sum(tf.square(x) if p == 2 else tf.pow(x, p), axis=list(axes), keepdims=keepdims)
    # The root has an infinite slope at 0; the inner where keeps it out of the gradient.
    positive = total > 0
    return tf.where(positive, tf.pow(tf.where(positive, total, tf.ones_like(total)), 1.0 / p), tf.zeros_like(total))
