"""The axis that a loop runs over."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.options import map_values
from returnn_tf.graph.node import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.loops.unstack import RecUnstackLayer, unstacked_axis
from returnn_tf.network.loops.step_layers import StepLayers
from returnn_tf.network.planning.builder import NetworkBuilder
from returnn_tf.tensor import Dim


@dataclasses.dataclass(frozen=True)
class IteratedAxis:
    """The axis that a loop runs over.

    :param time_dim: of the steps
    :param source_axis: the axis of the source that has a frame for each step; None without a source
    :param source_dim: its dim; another one than that of the steps if the loop finds its end itself
    """

    time_dim: Dim
    source_axis: Optional[int] = None
    source_dim: Optional[Dim] = None


def iterated_axis(owner: Node, parent: NetworkBuilder, layers: StepLayers) -> IteratedAxis:
    """Return the axis that a loop runs over.

    :param owner: the `rec` layer, with its sources
    :param parent: plans the enclosing network
    :param layers: the layers of the step network
    :raises LayerError: nothing determines the number of steps
    """
    layer: Any = owner.layer  # a RecLayer
    ctx = PlanContext(owner, parent)
    if owner.sources:
        data = layer.input_template(ctx)
        axis = data.time_axis if layer.axis is None else ctx.axis(data, layer.axis)
        if axis is None:
            raise ctx.error("the source %s has no time axis to iterate over. Name one by the option 'axis'." % data)
        dim = data.dims[axis]
        return IteratedAxis(ctx.new_spatial(None, "time") if layers.has_end else dim, axis, dim)
    if isinstance(layer.axis, Dim):
        ctx.depend_on_dim(layer.axis)
        return IteratedAxis(layer.axis)
    if layer.target_names and not layers.has_end:
        data = parent.target_data(owner, layer.target_names[0])
        if data.time_dim is not None:
            ctx.depend_on_dim(data.time_dim)  # a search may use nothing else of the target
            return IteratedAxis(data.time_dim)
    unstacked = None if layers.has_end else _unstacked_dim(layers, parent, ctx)
    if unstacked is not None:
        return IteratedAxis(unstacked)
    if layers.has_end:
        return IteratedAxis(ctx.new_spatial(None, "time"))
    raise ctx.error(
        "the number of steps is unknown: the loop has neither a source nor, in training, a target with a time "
        "axis, nor a layer 'end' in its unit. Add e.g. 'end': {'class': 'compare', 'from': 'output', 'value': 0}."
    )


def _unstacked_dim(layers: StepLayers, parent: NetworkBuilder, ctx: PlanContext) -> Optional[Dim]:
    """Return the outer axis whose frames a layer of the loop takes one by one, or None."""
    specs = sorted(layers.specs.values(), key=lambda spec: not spec.options.get("declare_rec_time"))
    for spec in specs:
        if issubclass(spec.cls, RecUnstackLayer) and spec.sources and str(spec.sources[0]).startswith("base:"):
            data = parent.resolve(spec.sources[0][len("base:") :], spec.where).output
            axis = map_values(spec.options.get("axis"), Dim, parent.state.resolve_dim)
            return data.dims[unstacked_axis(ctx, data, axis)]
    return None
