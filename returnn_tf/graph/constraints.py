"""Constraints on parameters and outputs which add to the objective: L2, DARC1 and spatial smoothing."""

from __future__ import annotations

import math
from typing import Any, Optional

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.node import ParamSpec
from returnn_tf.util.lazy_tf import tf


def layer_constraint(ctx: EmitContext) -> Optional[Any]:
    """The sum of all constraints of one layer, or None.

    L2: ``L2 * sum(x ** 2)`` over all its parameters, biases, untrained ones and those of other layers which it reuses
    too; a parameter that several layers with L2 use counts for each of them.
    """
    layer = ctx.node.layer
    total = None
    if layer.L2:
        for spec in (spec for spec in ctx.node.params.values() if isinstance(spec, ParamSpec)):
            term = layer.L2 * tf.reduce_sum(tf.square(tf.convert_to_tensor(ctx.lowering.variables[spec.name])))
            total = term if total is None else total + term
    if layer.darc1:
        term = layer.darc1 * darc1_value(ctx)
        total = term if total is None else total + term
    if layer.spatial_smoothing:
        term = layer.spatial_smoothing * spatial_smoothing_energy(ctx)
        total = term if total is None else total + term
    return total


def darc1_value(ctx: EmitContext) -> Any:
    """``max over features of the sum over valid frames of |x|`` (Kawaguchi, Kaelbling & Bengio 2017, eq. 10).

    x is the value before the activation if there is one. Like the losses it is a sum over frames, not a mean.
    """
    data = ctx.output
    assert data.feature_axis is not None, "darc1 needs a feature axis"
    noted = ctx.noted(ctx.node, "pre_activation")
    x = tf.abs(ctx.value(ctx.node) if noted is None else noted[0])
    mask = ctx.masks(data, data.dynamic_axes)
    if mask is not None:
        x = tf.where(mask, x, tf.zeros_like(x))
    return tf.reduce_max(tf.reduce_sum(x, axis=[i for i in range(data.rank) if i != data.feature_axis]))


def spatial_smoothing_energy(ctx: EmitContext) -> Any:
    """Energy of the high frequencies of the feature vector seen as a map, summed over the valid frames.

    The map has ``w`` columns, the largest number up to the root of the dim which divides it, and circular borders; the
    3x3 high-pass filter has 1 in the centre and -1/8 around it.
    """
    data = ctx.output
    assert data.feature_axis is not None and data.dim is not None
    width = math.isqrt(data.dim)
    while data.dim % width:
        width -= 1
    if width < 3 or data.dim // width < 3:
        raise ValueError(
            "spatial_smoothing needs a feature map of at least 3x3, the dim %d gives %dx%d"
            % (data.dim, data.dim // width, width)
        )
    x = ctx.value(ctx.node)
    mask = ctx.masks(data, data.dynamic_axes)
    if mask is not None:
        x = tf.where(mask, x, tf.zeros_like(x))
    x = tf.reshape(
        tf.transpose(x, [i for i in range(data.rank) if i != data.feature_axis] + [data.feature_axis]),
        [-1, data.dim // width, width],
    )
    around = tf.zeros_like(x)
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            if dy or dx:
                around += tf.roll(x, [dy, dx], axis=[1, 2])
    return tf.reduce_sum(tf.square(x - around / 8.0))
