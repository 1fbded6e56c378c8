"""`scatter_nd`: entries written, and summed, at positions given by another layer."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.config.options import LayerRef, OptionalLayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shape.gather import need_indices
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.numbers import need_numbers
from returnn_tf.ops.frames.gather import scatter_add
from returnn_tf.ops.frames.shape import to_layout, transpose, with_sizes
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.tensor.match import common_layout, match_axes
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class ScatterNdPlan(LayerPlan):
    """The plan of `ScatterNdLayer`.

    :param positions: the layout of the positions
    :param layout: the axes of input and positions together
    :param axis: that of the positions, in ``layout``
    """

    positions: Data
    layout: Data
    axis: int


@register_layer("scatter_nd")
class ScatterNdLayer(ConcatInputLayer, Planned[ScatterNdPlan]):
    """The inverse of `gather`: ``y[position[i]] += x[i]``, starting from zero.

    Positions and source are broadcast to all their axes, in the order of the one with more axes, else of the positions;
    ``position_axis`` is replaced by the new dim.
    Padded frames of the source count like all others: set them to zero, or their position to -1 together with
    filter_invalid_indices.
    Lengths: those of the new dim.

    Example::

        network = {
            "r": {"class": "range_in_axis", "axis": "T", "from": "data"},
            "pos": {"class": "eval", "eval": "source(0) // 2", "from": "r"},
            "output": {"class": "scatter_nd", "position": "pos", "position_axis": "T",
                "output_dim_via_time_from": "data", "from": "data"}}
    """

    position: LayerRef = option(help="layer with integers: the position of each entry", refs=True)
    position_axis: AxisOption = option(help="the axis of the positions to replace")
    output_dim_via_time_from: OptionalLayerRef = option(None, help="layer whose time dim is the new dim", refs=True)
    out_spatial_dim: Optional[Dim] = option(None, help="the new dim")
    filter_invalid_indices: bool = option(False, help="ignore entries whose position is outside the new axis")

    def template(self, ctx: PlanContext) -> ScatterNdPlan:
        """Infer the output: all axes of source and positions, one of them replaced."""
        data = self.input_template(ctx)
        need_numbers(ctx, data, "a sum")
        positions = need_indices(ctx, self.position)
        position_axis = ctx.axis(positions, self.position_axis)
        dim = self._new_dim(ctx)
        layout = common_layout([positions.replace(feature_axis=None), data], allow_broadcast_all=True)
        axis = match_axes(positions, layout)[position_axis]
        if axis is None:
            # Of size 1, and no other template has it.
            axis = layout.rank if layout.feature_axis is None else layout.feature_axis
            layout = layout.with_axis(axis, positions.dims[position_axis])
        is_feature = layout.feature_axis == axis and dim.kind is DimKind.FEATURE
        out = layout.with_dim(axis, dim).replace(
            dtype=data.dtype, sparse_dim=None, feature_axis=layout.feature_axis if is_feature else None, vocab=None
        )
        if layout.feature_axis != axis:
            out = out.replace(feature_axis=layout.feature_axis)
        if dim.is_dynamic() and (out.time_axis is None or out.time_axis == axis):
            out = out.replace(time_axis=axis)
        return ScatterNdPlan(with_feature_default(out), positions, layout, axis)

    def _new_dim(self, ctx: PlanContext) -> Dim:
        if (self.output_dim_via_time_from is None) == (self.out_spatial_dim is None):
            raise ctx.error("give one of output_dim_via_time_from and out_spatial_dim.")
        if self.out_spatial_dim is not None:
            ctx.depend_on_dim(self.out_spatial_dim)
            return self.out_spatial_dim
        dim: Optional[Dim] = self.output_dim_via_time_from.output.time_dim
        if dim is None:
            raise ctx.error("output_dim_via_time_from: layer %r has no time axis." % self.output_dim_via_time_from.path)
        return dim

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one segment sum."""
        layout, axis = self.plan.layout, self.plan.axis
        mapping = match_axes(self.plan.positions, layout)
        # Axes of the positions come first, so that the others stay together as one entry.
        lead = [a for a in range(layout.rank) if a in mapping and a != axis]
        inner: list[int] = [a for a in range(layout.rank) if a not in lead and a != axis]
        order = lead + [axis] + inner
        shape = ctx.shape(layout)
        x = tf.broadcast_to(to_layout(self.emit_input(ctx), self.input, layout), tf.stack(shape))
        index = to_layout(ctx.value(self.position), self.plan.positions, layout, mapping)
        index = transpose(index, order)
        index = tf.squeeze(index, axis=list(range(len(lead) + 1, layout.rank))) if inner else index
        index = tf.broadcast_to(tf.cast(index, tf.int32), tf.stack([shape[a] for a in lead + [axis]]))
        y = scatter_add(
            transpose(x, order),
            index,
            ctx.size(ctx.output.dims[axis]),
            batch_dims=len(lead),
            drop_invalid=self.filter_invalid_indices,
        )
        return with_sizes(transpose(y, [order.index(a) for a in range(layout.rank)]), ctx.output.static_shape)
