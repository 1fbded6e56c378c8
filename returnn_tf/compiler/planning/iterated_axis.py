"""The axis that a loop runs over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Optional

from returnn_tf.compiler.planning.checks import located
from returnn_tf.compiler.planning.parse import LayerSpec
from returnn_tf.compiler.planning.step_layers import StepLayers, rec_layer
from returnn_tf.config.errors import LoopError
from returnn_tf.config.option_values import map_values
from returnn_tf.graph.layer import Node
from returnn_tf.graph.network_planner import NetworkPlanner
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.rec.rec import RecLayer
from returnn_tf.layers.rec.unstack import unstacked_axis
from returnn_tf.tensor import Dim


@dataclasses.dataclass(frozen=True)
class IteratedAxis:
    """The axis that a loop runs over.

    :param time_dim: of the steps
    :param source_axis: the axis of the source that has a frame for each step; None without a source
    :param source_dim: its dim; that of the steps may be another one
    :param known: whether the number of steps is known before the loop, without its options
    """

    time_dim: Dim
    source_axis: Optional[int] = None
    source_dim: Optional[Dim] = None
    known: bool = True


def knows_axis(owner: Node, parent: NetworkPlanner, specs: Mapping[str, LayerSpec]) -> bool:
    """Return whether the option ``axis`` of a loop names an axis with known lengths, so that nothing else ends it."""
    layer = rec_layer(owner)
    dim = layer.axis
    if not isinstance(dim, Dim):
        return dim is not None
    if any(dim in source.output.dims for source in owner.sources) or _is_known(dim, owner, parent):
        return True
    return _unstacked_dim(specs, parent, owner) is dim


def iterated_axis(owner: Node, parent: NetworkPlanner, layers: StepLayers) -> IteratedAxis:
    """Return the axis that a loop runs over.

    Its dim is the option ``axis`` if that is given. The lengths are those of that dim if they are known, else those of
    the source unless there is a layer "end", of size_target, of the target where losses are computed, of what the loop
    unstacks, or those that the layer "end" or max_seq_len give.

    :param owner: the `rec` layer, with its sources
    :param parent: plans the enclosing network
    :param layers: the layers of the step network
    :raises LayerError: nothing determines the number of steps
    """
    layer = rec_layer(owner)
    ctx = PlanContext(owner, parent)
    source_axis, source_dim = _axis_of_source(ctx, layer)
    new = layer.axis if isinstance(layer.axis, Dim) and not layers.knows_axis else None
    if layers.knows_axis:
        known: Optional[Dim] = layer.axis if isinstance(layer.axis, Dim) else source_dim
        if source_dim is None and known is not None and _unstacked_dim(layers.specs, parent, owner) is None:
            ctx.depend_on_dim(known)
    elif layers.has_end:
        known = None
    else:
        known = source_dim if "end" not in layers.specs else None
        known = known or _dim_of_target(ctx, layers) or source_dim or _unstacked_dim(layers.specs, parent, owner)
    if known is not None:
        return IteratedAxis(known if new is None else ctx.bind(new, known), source_axis, source_dim)
    if layers.has_end or (new is not None and (layer.max_seq_len, layer.max_seq_len_via) != (None, None)):
        dim = ctx.new_spatial(None, "dyn-time:%s") if new is None else new
        return IteratedAxis(dim, source_axis, source_dim, known=False)
    if new is not None:
        raise LoopError(
            "the number of steps is unknown: the axis %s is neither one of an input nor one that a layer of the unit "
            "takes apart ('rec_unstack'). Give the dim of such an axis, or a layer 'end' in the unit." % new
        )
    raise LoopError(
        "the number of steps is unknown: the loop has neither a source nor, in training, a target with a time "
        "axis, nor a layer 'end' in its unit. Add e.g. 'end': {'class': 'compare', 'from': 'output', 'value': 0}."
    )


def _axis_of_source(ctx: PlanContext, layer: RecLayer) -> tuple[Optional[int], Optional[Dim]]:
    """Return the axis of the source with a frame for each step, and its dim; None without a source."""
    if not ctx.node.sources:
        return None, None
    data = layer.input_template(ctx)
    axis = data.time_axis
    if layer.axis is not None and not (isinstance(layer.axis, Dim) and layer.axis not in data.dims):
        axis = ctx.axis(data, layer.axis)
    if axis is None:
        raise LoopError("the source %s has no time axis to iterate over. Name one by the option 'axis'." % data)
    return axis, data.dims[axis]


def _dim_of_target(ctx: PlanContext, layers: StepLayers) -> Optional[Dim]:
    """Return the time dim of size_target, else of the target, if there is one in this mode."""
    layer = rec_layer(ctx.node)
    for name in [layer.size_target, *layer.target_names]:
        data = None if name is None else ctx.planner.target_data(ctx.node, name)
        if data is not None and data.time_dim is not None:
            ctx.depend_on_dim(data.time_dim)  # a search may use nothing else of the target
            return data.time_dim
    return None


def _is_known(dim: Dim, owner: Node, parent: NetworkPlanner) -> bool:
    """Return whether something planned so far, or an input, gives the lengths of a dim."""
    if dim.size is not None or parent.node_with_dim(owner, dim) is not None:
        return True
    operands = [a for a in dim.expr.args if isinstance(a, Dim)] if dim.expr is not None else []
    return bool(operands) and all(_is_known(operand, owner, parent) for operand in operands)


def _unstacked_dim(specs: Mapping[str, LayerSpec], parent: NetworkPlanner, owner: Node) -> Optional[Dim]:
    """Return the outer axis whose frames a layer of the loop takes one by one, or None."""
    ctx = PlanContext(owner, parent)
    for spec in sorted(specs.values(), key=lambda spec: not spec.options.get("declare_rec_time")):
        if spec.cls.unstacks_frames and spec.sources and str(spec.sources[0]).startswith("base:"):
            data = parent.resolve(spec.sources[0][len("base:") :], spec.where).output
            axis = map_values(spec.options.get("axis"), Dim, parent.dims.resolve)
            with located(spec.path, str(spec.cls.class_name), owner):
                return data.dims[unstacked_axis(ctx, data, axis)]
    return None
