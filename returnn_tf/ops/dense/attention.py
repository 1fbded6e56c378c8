"""Building blocks of attention: products over named axes, visibility of keys, and histories that grow step by step."""

from __future__ import annotations

import string
from collections.abc import Hashable, Sequence
from typing import Any, Optional

from returnn_tf.ops.dense.einsum import einsum
from returnn_tf.ops.mixed_precision import full, reduced
from returnn_tf.util.lazy_tf import tf


def product_sum(
    operands: Sequence[tuple[Any, Sequence[Hashable]]], out: Sequence[Hashable], *, product_dtype: Optional[str]
) -> Any:
    """Multiply two tensors with labelled axes, and sum over the labels missing in the result.

    :param operands: two of (tensor, a label for each of its axes)
    :param out: labels of the result, in order
    :param product_dtype: see `Semantics`
    """
    letters: dict[Hashable, str] = {}
    terms = []
    for _, labels in operands:
        terms.append("".join(letters.setdefault(label, string.ascii_letters[len(letters)]) for label in labels))
    equation = "%s->%s" % (",".join(terms), "".join(letters[label] for label in out))
    return full(einsum(equation, *(reduced(x, product_dtype) for x, _ in operands)), product_dtype)


def left_only_mask(size: Any) -> Any:
    """Return a bool mask [size queries, size keys]: a query sees its own frame and those before it."""
    frames = tf.range(size)
    return frames[None, :] <= frames[:, None]


def empty_history(shape: Sequence[Any], axis: int, dtype: str) -> Any:
    """Return a tensor with size 0 on one axis, which may grow in a `tf.while_loop`.

    :param shape: sizes of all axes, ints or scalars; the entry of ``axis`` is ignored
    """
    # A constant 0 would be part of the static shape, see `growing`.
    nothing = tf.raw_ops.PlaceholderWithDefault(input=tf.constant(0), shape=[])
    sizes = list(shape)
    sizes[axis] = nothing
    return tf.zeros(tf.stack(sizes), dtype)


def growing(x: Any, axis: int) -> Any:
    """Return the tensor without a static size on one axis, which a ``tf.while_loop`` would require to stay the same."""
    if x.shape[axis] is None:
        return x
    shape = x.shape.as_list()
    shape[axis] = None
    return tf.raw_ops.PlaceholderWithDefault(input=x, shape=shape)
