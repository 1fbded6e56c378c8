"""Products of two tensors, summed over some axes."""

from __future__ import annotations

import string
from typing import Any, NamedTuple

from returnn_tf.ops.dense.einsum import einsum
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.util.lazy_tf import tf


class DotAxes(NamedTuple):
    """Axes of two tensors: summed over (pairwise), of one tensor only, and common ones (pairwise)."""

    red1: list[int]
    red2: list[int]
    var1: list[int]
    var2: list[int]
    common1: list[int]
    common2: list[int]


def contract(x1: Any, x2: Any, axes: DotAxes) -> Any:
    """Compute ``y[common, var1, var2] = sum over red of x1 * x2`` as one batched matrix product."""
    first, second, out = axis_letters(axes)
    return einsum("%s,%s->%s" % (first, second, out), x1, x2)


def axis_letters(axes: DotAxes) -> tuple[str, str, str]:
    """Return the letters of the axes of both tensors and of the result."""
    letters = iter(string.ascii_letters)
    names1 = {axis: next(letters) for axis in axes.common1 + axes.var1 + axes.red1}
    names2 = {axis: next(letters) for axis in axes.var2}
    names2.update({j: names1[i] for i, j in zip(axes.common1 + axes.red1, axes.common2 + axes.red2)})
    out = [names1[i] for i in axes.common1 + axes.var1] + [names2[j] for j in axes.var2]
    first = "".join(names1[i] for i in range(len(names1)))
    second = "".join(names2[j] for j in range(len(names2)))
    return first, second, "".join(out)


def gather_rows(x1: Any, x2: Any, axes: DotAxes, *, sparse: int) -> Any:
    """Compute `contract` where one tensor holds indices that stand for one-hot vectors over the reduced axis.

    :param sparse: 0 or 1, which tensor holds indices; its red axes are empty
    """
    if sparse == 0:
        indices = transpose(x1, axes.common1 + axes.var1)
        rows = transpose(x2, axes.common2 + axes.red2 + axes.var2)
    else:
        indices = transpose(x2, axes.common2 + axes.var2)
        rows = transpose(x1, axes.common1 + axes.red1 + axes.var1)
    n = len(axes.common1)
    y = tf.gather(rows, indices, axis=n, batch_dims=n)
    if sparse == 0:
        return y
    # [common, var2, var1] so far
    mid, end = n + len(axes.var2), n + len(axes.var2) + len(axes.var1)
    return transpose(y, list(range(n)) + list(range(mid, end)) + list(range(n, mid)))
