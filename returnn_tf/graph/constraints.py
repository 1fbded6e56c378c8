"""Constraints on parameters and outputs that add to the objective: L2, DARC1 and spatial smoothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Optional

from returnn_tf.graph.aux_values import PRE_ACTIVATION
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.params.reuse import CustomParam
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


def check_output_constraints(ctx: PlanContext, data: Data) -> None:
    """Check that the output of a layer supports the constraints that its options request.

    :raises ConfigError: it has no feature axis, or spatial_smoothing finds no map in it
    """
    layer = ctx.node.layer
    if not constrains_output(ctx.node) or data.unknown:
        return
    dim = ctx.need_feature(data, "the output (constrained by darc1 or spatial_smoothing)")
    if layer.spatial_smoothing:
        height, width = _feature_map(ctx.need_static(dim, "for spatial_smoothing, the feature axis"))
        if width < 3:
            raise ctx.error(
                "spatial_smoothing treats the features as a map, which must be at least 3x3, but %s gives %dx%d. "
                "Choose another output size, e.g. a square number." % (dim, height, width)
            )


def constrains_output(node: Node) -> bool:
    """Return whether a layer has a constraint on its output, not only on its parameters."""
    return bool(node.layer.darc1 or node.layer.spatial_smoothing)


def param_constraint(ctx: EmitContext, nodes: Iterable[Node]) -> Optional[Any]:
    """Return the constraint of one layer on its parameters, or None.

    L2: ``L2 * sum(x ** 2)`` over all its parameters and those of the layers inside it, including biases and untrained
    ones, but not what it gets from other layers by reuse_params. Where a layer with L2 is inside another one with L2,
    or two of them have one scope, their parameters count for both.

    :param nodes: all layers of the network, with those inside loops
    """
    layer = ctx.node.layer
    total = None
    if layer.L2:
        for spec in _variables(ctx.node, nodes):
            term = layer.L2 * tf.reduce_sum(tf.square(tf.convert_to_tensor(ctx.lowering.params.variables[spec.name])))
            total = term if total is None else total + term
    return total


def output_constraint(ctx: EmitContext, run: Optional[Node] = None) -> Optional[Any]:
    """Return the sum of the constraints of one layer on its output, which are sums over frames, or None.

    :param run: for a layer of a loop: the node that runs the loop
    """
    layer = ctx.node.layer
    total = None
    for name in ("darc1", "spatial_smoothing"):
        factor = getattr(layer, name)
        if factor and not (run is not None and ctx.search):  # hypotheses of a search are not constrained
            data, x = _constrained(ctx, name, run)
            term = factor * _ENERGIES[name](ctx, data, x)
            total = term if total is None else total + term
    return total


def _variables(node: Node, nodes: Iterable[Node]) -> Iterable[ParamSpec]:
    """Return the parameters in the scopes of a layer and of those inside it."""
    found: dict[str, ParamSpec] = {}
    for inner in nodes:
        if inner is not node and not inner.path.startswith(node.path + "/"):
            continue
        for provider in inner.params.values():
            if isinstance(provider, ParamSpec) and _is_below(provider.name, inner.scope):
                found[provider.name] = provider
            elif isinstance(provider, CustomParam):
                found.update(provider.created)
    return found.values()


def _is_below(name: str, scope: str) -> bool:
    return not scope or name.startswith(scope + "/")


def constrained_values(ctx: EmitContext) -> dict[str, Any]:
    """Return the values that darc1 and spatial_smoothing constrain, depending on the option.

    For darc1 these are the values before the activation if there is one.
    """
    result = {}
    if ctx.node.layer.darc1:
        before = ctx.aux(ctx.node, PRE_ACTIVATION)
        result["darc1"] = ctx.value(ctx.node) if before is None else before.values
    if ctx.node.layer.spatial_smoothing:
        result["spatial_smoothing"] = ctx.value(ctx.node)
    return result


def step_output_name(node: Node, name: str) -> str:
    """Return the name of the loop's further output that holds the constrained values of all steps."""
    return "%s/%s" % (node.path, name)


def _constrained(ctx: EmitContext, name: str, run: Optional[Node]) -> tuple[Data, Any]:
    data = ctx.output
    if run is None:
        return data, constrained_values(ctx)[name]
    loop_dim = run.layer.loop.loop_dim  # type: ignore[attr-defined]
    return data.with_axis(0, loop_dim), ctx.lowering.values.sub_outputs[run, step_output_name(ctx.node, name)]


def darc1_value(ctx: EmitContext, data: Data, x: Any) -> Any:
    """Return ``max over features of the sum over valid frames of |x|`` (Kawaguchi, Kaelbling & Bengio 2017, eq. 10).

    Like the losses, it is a sum over frames, not a mean.
    """
    assert data.feature_axis is not None, "darc1 needs a feature axis"
    x = tf.abs(_without_padding(ctx, data, x))
    return tf.reduce_max(tf.reduce_sum(x, axis=[i for i in range(data.rank) if i != data.feature_axis]))


def spatial_smoothing_energy(ctx: EmitContext, data: Data, x: Any) -> Any:
    """Return the high-frequency energy of the feature vector viewed as a map, summed over the valid frames.

    The map has ``w`` columns, where w is the largest divisor of the dim up to its square root, and circular borders;
    the 3x3 high-pass filter has 1 in the centre and -1/8 around it.
    """
    assert data.feature_axis is not None and data.dim is not None
    x = _without_padding(ctx, data, x)
    x = tf.transpose(x, [i for i in range(data.rank) if i != data.feature_axis] + [data.feature_axis])
    x = tf.reshape(x, [-1, *_feature_map(data.dim)])
    around = tf.zeros_like(x)
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            if dy or dx:
                around += tf.roll(x, [dy, dx], axis=[1, 2])
    return tf.reduce_sum(tf.square(x - around / 8.0))


_ENERGIES = {"darc1": darc1_value, "spatial_smoothing": spatial_smoothing_energy}


def _without_padding(ctx: EmitContext, data: Data, x: Any) -> Any:
    mask = ctx.masks(data, data.dynamic_axes)
    return x if mask is None else tf.where(mask, x, tf.zeros_like(x))


def _feature_map(size: int) -> tuple[int, int]:
    """Return (rows, columns) of a feature vector viewed as a map."""
    width = math.isqrt(size)
    while size % width:
        width -= 1
    return size // width, width
