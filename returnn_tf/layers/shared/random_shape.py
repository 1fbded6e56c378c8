"""The template of random numbers: the dims of an option ``shape``, and in a loop the steps in front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf


def random_dims(ctx: PlanContext, shape: Sequence[Any], *, last_is_feature: bool) -> list[Dim]:
    """Return the dims of a shape, whose sizes are then available while the layer is emitted.

    :param shape: dims, and sizes of new static axes
    :param last_is_feature: whether a size at the end is of feature kind
    """
    dims = []
    for i, entry in enumerate(shape):
        if not isinstance(entry, Dim):
            if entry < 0:
                raise ctx.error("shape must hold dims and sizes of at least 0, got %d." % entry)
            kind = DimKind.FEATURE if last_is_feature and i == len(shape) - 1 else DimKind.SPATIAL
            entry = Dim(kind, entry, "%s:static%d" % (ctx.node.path, i), auto=True)
        if entry in dims:
            raise ctx.error("shape has the dim %s twice." % entry)
        ctx.depend_on_dim(entry)
        dims.append(entry)
    return dims


def with_steps(ctx: PlanContext, data: Data) -> Data:
    """Return the template with the steps of a loop in front, for numbers that are drawn for all steps at once."""
    if ctx.loop_dim is None or ctx.in_step or ctx.loop_dim in data.dims:
        return data
    return data.with_axis(0, ctx.loop_dim)


def sizes(ctx: EmitContext) -> Any:
    """Return the shape of the output as a tensor, int32 [rank]."""
    data = ctx.output
    return tf.stack([tf.cast(size, tf.int32) for size in ctx.shape(data)]) if data.rank else tf.zeros([0], tf.int32)


def check_scalar(ctx: PlanContext, name: str, node: Optional[Any]) -> None:
    """Check that the value of an option is a number, or a layer with a single number.

    :raises ConfigError: a layer with axes, or with labels or texts
    """
    if not isinstance(node, Node):
        return
    data = node.output
    if data.unknown:
        return
    if data.rank or data.dtype in ("bool", "string"):
        raise ctx.error(
            "%s is the layer %r with the output %s, but it must be a number or a layer with a single number. Reduce it "
            "first, and scale the random numbers by combine or eval if each frame has a value of its own."
            % (name, node.path, data)
        )


def scalar(ctx: EmitContext, value: Any, dtype: str) -> Any:
    """Return the value of an option, a number or a layer, as a scalar tensor."""
    return tf.cast(ctx.value(value), dtype) if isinstance(value, Node) else tf.constant(np.asarray(value, dtype))
