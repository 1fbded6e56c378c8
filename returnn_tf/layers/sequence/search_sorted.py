"""`search_sorted`: insertion points in a sorted sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.ops.frames.reduce import fill_masked
from returnn_tf.ops.frames.shape import to_layout, transpose
from returnn_tf.tensor import Data
from returnn_tf.tensor.match import match_axes
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class SearchSortedPlan(LayerPlan):
    """The plan of `SearchSortedLayer`.

    :param axis: the sorted one
    :param common: the axes of the values that the sorted sequence has, too
    """

    axis: int
    common: Sequence[int]


@register_layer("search_sorted")
class SearchSortedLayer(Planned[SearchSortedPlan]):
    """The index (int32) at which each value could be inserted into a sorted sequence.

    Side "left": the number of entries that are smaller; "right": the number of those that are not larger. All axes of
    the sequence but ``axis`` must be in the values; the output has the axes of the values. Frames after the end of the
    sequence don't count.

    No parameters. Lengths: those of the values.

    Example::

        network = {
            "sorted": {"class": "cumsum", "axis": "F", "from": "data"},
            "value": {"class": "reduce", "mode": "mean", "axis": "F", "from": "data"},
            "output": {"class": "search_sorted", "sorted_sequence": "sorted", "values": "value", "axis": "F"}}
    """

    needs_sources: ClassVar[bool] = False

    sorted_sequence: LayerRef = option(help="layer with ascending values along the axis", refs=True)
    values: LayerRef = option(help="layer with the values to look up", refs=True)
    axis: Axis = option("T", help="the axis of the sorted sequence")
    side: str = option("left", choices=("left", "right"), help="left: before equal entries, right: after them")

    def template(self, ctx: PlanContext) -> SearchSortedPlan:
        """Infer the output: axes of the values."""
        for name in ("sorted_sequence", "values"):
            if not isinstance(getattr(self, name), Node):
                raise ctx.error("%s must be a layer, got %r." % (name, getattr(self, name)))
        seq: Data = self.sorted_sequence.output
        values: Data = self.values.output
        if seq.dtype.startswith(("complex", "bool", "string")):
            raise ctx.error("sorted_sequence must be numbers in an order, not %s." % seq)
        if seq.dtype != values.dtype:
            raise ctx.error("sorted_sequence is %s, but values is %s. Cast one of them." % (seq.dtype, values.dtype))
        axis = ctx.axis(seq, self.axis)
        rest = seq.without_axes([axis])
        matched = match_axes(rest, values)
        missing = [str(d) for d, target in zip(rest.dims, matched) if target is None]
        if missing:
            raise ctx.error("the axis %s of sorted_sequence %s is not in values %s." % (missing[0], seq, values))
        common: list[int] = [target for target in matched if target is not None]
        return SearchSortedPlan(values.replace(dtype="int32", sparse_dim=None, vocab=None), axis, common)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one op with the common axes merged, and all other axes of the values too."""
        seq_data, values_data = self.sorted_sequence.output, self.values.output
        seq, axis = ctx.value(self.sorted_sequence), self.plan.axis
        if seq_data.batch_axis is not None or not seq_data.dims[axis].is_dynamic():
            mask = ctx.masks(seq_data, [axis])
            seq = seq if mask is None else fill_masked(seq, mask, "highest")
        frames = tf.shape(seq)[axis]
        seq = transpose(seq, [i for i in range(seq_data.rank) if i != axis] + [axis])
        order = [*self.plan.common, *(i for i in range(values_data.rank) if i not in self.plan.common)]
        values = transpose(ctx.value(self.values), order)
        shape = tf.shape(values)
        count = tf.reduce_prod(shape[: len(self.plan.common)])
        index = tf.searchsorted(
            tf.reshape(seq, tf.stack([count, frames])), tf.reshape(values, tf.stack([count, -1])), side=self.side
        )
        lens_limit = self._limit(ctx, seq_data, values_data)
        index = transpose(tf.reshape(index, shape), [order.index(i) for i in range(len(order))])
        return index if lens_limit is None else tf.minimum(index, lens_limit)

    def _limit(self, ctx: EmitContext, seq: Data, values: Data) -> Any:
        """Return the lengths of the sorted sequence in the layout of the values, the upper bound of the index."""
        dim = seq.dims[self.plan.axis]
        if not dim.is_dynamic():
            return None
        lens = ctx.lens(dim)
        if lens.shape.rank == 0:
            return lens
        if values.batch_axis is None:
            return None
        return to_layout(lens, Data((values.dims[values.batch_axis],), "int32"), values)
