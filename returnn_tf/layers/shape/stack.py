"""`stack`: the sources stacked along a new axis."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.match import common_layout
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class StackPlan(LayerPlan):
    """The plan of `StackLayer`.

    :param layout: the axes of all sources together
    :param position: of the new axis in the output
    """

    layout: Data
    position: int


@register_layer("stack")
class StackLayer(Planned[StackPlan]):
    """Stacks the sources along a new axis. Axes that a source lacks are broadcast.

    The new axis is in front of the feature axis, or becomes it if absent, unless ``axis`` gives its index, batch
    included. Behind a feature axis that is not a declared dim, it becomes the feature axis.
    Lengths: unchanged.

    Example::

        network = {
            "a": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "data"},
            "output": {"class": "stack", "from": ["data", "a"]}}
    """

    axis: Optional[int] = option(None, help="index of the new axis, batch included")
    out_spatial_dim: Optional[Dim] = option(None, help="the new dim; its size is the number of sources")

    def template(self, ctx: PlanContext) -> StackPlan:
        """Infer the output: the common layout with the new axis."""
        if not self.sources:
            raise ctx.error("needs at least one source.")
        datas = [node.output for node in self.sources]
        if len({d.dtype for d in datas}) > 1:
            raise ctx.error("the sources have different dtypes: %s. Cast them." % ", ".join(d.dtype for d in datas))
        layout = common_layout(datas, allow_broadcast_all=True)
        if self.axis is not None:
            position = self.axis if self.axis >= 0 else self.axis + layout.rank + 1
            if not 0 <= position <= layout.rank:
                raise ctx.error("axis %d is out of range for %s." % (self.axis, layout))
        elif layout.feature_axis is not None:
            position = layout.feature_axis
        else:
            position = layout.rank
        dim = ctx.bind(self.out_spatial_dim, ctx.new_spatial(len(datas), "stack"))
        data = layout.with_axis(position, dim)
        feature = layout.feature_axis
        if feature is not None and layout.dims[feature].auto and position > feature:
            data = data.replace(feature_axis=position)  # nobody marked an axis: it is the last static one
        return StackPlan(with_feature_default(data), layout, position)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one stack op."""
        parts = [ctx.broadcast(node, self.plan.layout) for node in self.sources]
        if any(node.output.rank < self.plan.layout.rank for node in self.sources):
            shape = tf.stack(ctx.shape(self.plan.layout))
            parts = [tf.broadcast_to(part, shape) for part in parts]
        return tf.stack(parts, axis=self.plan.position)
