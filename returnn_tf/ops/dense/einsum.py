"""`tf.einsum`, in a form that converters to other formats know."""

from __future__ import annotations

import string
from typing import Any

from returnn_tf.native.portable import in_portable_ops
from returnn_tf.util.lazy_tf import tf


def einsum(equation: str, x: Any, y: Any) -> Any:
    """Compute `tf.einsum` of two tensors.

    :param equation: with a letter for each axis, e.g. "ab,abc->ac"
    """
    operands, out = equation.split("->")
    first, second = operands.split(",")
    if not in_portable_ops() or any(letter in out and letter not in second for letter in first):
        return tf.einsum(equation, x, y)
    # TFLite's converter makes no matrix product of batch 1 from a first operand without rows: it gets a row here.
    row = next(letter for letter in string.ascii_letters if letter not in equation)
    return tf.squeeze(tf.einsum("%s%s,%s->%s%s" % (first, row, second, out, row), tf.expand_dims(x, -1), y), -1)
