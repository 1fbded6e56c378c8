"""`remove`: deletion of a label from label sequences."""

from __future__ import annotations

import dataclasses
from typing import Any

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shape.prefix_postfix import frame_axis
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class RemovePlan(LayerPlan):
    """The plan of `RemoveLayer`.

    :param symbol: the label to remove
    :param dim: the frames that are left
    """

    symbol: int
    dim: Dim


@register_layer("remove")
class RemoveLayer(ConcatInputLayer, Planned[RemovePlan]):
    """Removes all frames with a given label from label sequences; the rest closes up in the same order.

    The output is [batch, axis]. No parameters. Lengths: the number of remaining frames.

    Example::

        network = {"output": {"class": "remove", "symbol": 1, "from": "data:classes"}}
    """

    symbol: int = option(help="the label to remove; negative ones count from the end of the labels")
    axis: Axis = option("T", help="the frame axis")

    def template(self, ctx: PlanContext) -> RemovePlan:
        """Infer the output: a new axis."""
        data = self.input_template(ctx)
        if data.sparse_dim is None or data.batch_axis is None or data.rank != 2:
            raise ctx.error("needs label sequences, sparse with the axes batch and time, but the source is %s." % data)
        axis = frame_axis(ctx, data, self.axis)
        symbol = self.symbol
        if self.symbol < 0:
            symbol += ctx.need_static(data.sparse_dim, "with a negative symbol, the number of labels")
        dim = ctx.bind(self.out_dim, ctx.new_spatial(None, "removed"))
        return RemovePlan(data.permuted([data.batch_axis, axis]).with_dim(1, dim), symbol, dim)

    def emit(self, ctx: EmitContext) -> Any:
        """Sort the frames so that those kept come first."""
        data = self.input
        axis = 1 - (data.batch_axis or 0)
        x = transpose(self.emit_input(ctx), [1 - axis, axis])
        keep = tf.not_equal(x, tf.cast(self.plan.symbol, x.dtype))
        if data.dims[axis].is_dynamic():
            keep = tf.logical_and(keep, ctx.seq_mask_by_batch(data, axis))
        lens = tf.reduce_sum(tf.cast(keep, tf.int32), axis=1)
        frames = tf.reduce_max(tf.concat([lens, [0]], axis=0))
        ctx.define_lens(self.plan.dim, lens, size=frames)
        order = tf.argsort(tf.cast(keep, tf.int32), axis=1, direction="DESCENDING", stable=True)[:, :frames]
        return tf.gather(x, order, batch_dims=1)
