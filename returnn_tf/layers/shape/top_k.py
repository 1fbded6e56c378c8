"""`top_k`: the largest entries and their indices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import LayerOrNumber, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.ops.frames.reduce import fill_masked
from returnn_tf.ops.frames.shape import size_of, transpose
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class TopKPlan(LayerPlan):
    """The plan of `TopKLayer`.

    :param axes: the axes that the entries are chosen from
    :param k_dim: the axis of the chosen ones
    """

    axes: Sequence[int]
    k_dim: Dim


@register_layer("top_k")
class TopKLayer(Planned[TopKPlan]):
    """The k largest entries of an axis, largest first, on a new last axis in place of that axis.

    ``<layer>/indices`` has their indices in that axis (int32, sparse). With a list of axes the largest entries of all
    of them together are found, and ``<layer>/indices0``, ``indices1``, ... have the indices per axis. Frames after the
    end of a sequence don't count.

    No parameters. Lengths: unchanged for the other axes.

    Example::

        network = {
            "best": {"class": "top_k", "axis": "F", "k": 2, "from": "data", "is_output_layer": True},
            "output": {"class": "copy", "from": "best/indices"}}
    """

    takes_complex = False
    axis: Axes = option(help="the axis, or a list of axes")
    k: LayerOrNumber = option(help="number of entries; a number, or a layer with one number", refs=True)
    k_dim: Optional[Dim] = option(None, help="the new axis")
    sorted: bool = option(True, help="sort the entries; False: any order")

    def template(self, ctx: PlanContext) -> TopKPlan:
        """Infer the output: the axes replaced by one of size k at the end."""
        data = ctx.single_source()
        axes = ctx.axes(data, self.axis)
        if not axes:
            raise ctx.error("axis %r means no axis of %s." % (self.axis, data))
        if data.dtype in ("bool", "string"):
            raise ctx.error("the source is %s, but its entries must be numbers." % data)
        k_dim = self._new_dim(ctx, [data.dims[axis].size for axis in axes])
        out = data.without_axes(axes)
        out = out.with_axis(out.rank, k_dim)
        for name, axis in zip(self._part_names(len(axes)), axes):
            part = out.replace(dtype="int32", sparse_dim=data.dims[axis], feature_axis=None, vocab=None)
            ctx.sub_output(name, part)
        return TopKPlan(out, axes, k_dim)

    def _part_names(self, count: int) -> list[str]:
        if isinstance(self.axis, (list, tuple)) or count > 1:
            return ["indices%d" % i for i in range(count)]
        return ["indices"]

    def _new_dim(self, ctx: PlanContext, sizes: list[Optional[int]]) -> Dim:
        if isinstance(self.k, Node):
            if self.k.output.rank or not self.k.output.dtype.startswith("int"):
                raise ctx.error("the layer 'k' must be a single integer, but it is %s." % self.k.output)
            return ctx.bind(self.k_dim, ctx.new_spatial(None, "k"))
        if not isinstance(self.k, int) or self.k < 1:
            raise ctx.error("k must be a positive number, got %r." % (self.k,))
        total = 1
        for size in sizes:
            total *= size or 0
        if None not in sizes and self.k > total:
            raise ctx.error("k is %d, but there are only %d entries." % (self.k, total))
        return ctx.bind(self.k_dim, ctx.new_spatial(self.k, "k"))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the axes merged at the end, then one op."""
        data, x = self.source.output, ctx.source()
        mask = ctx.masks(data, self.plan.axes) if data.batch_axis is not None else None
        if mask is not None:
            x = fill_masked(x, mask, "lowest")
        rest = [i for i in range(data.rank) if i not in self.plan.axes]
        x = transpose(x, [*rest, *self.plan.axes])
        sizes = [size_of(x, len(rest) + i) for i in range(len(self.plan.axes))]
        if len(sizes) > 1:
            shape = [size_of(x, i) for i in range(len(rest))]
            product = sizes[0]
            for size in sizes[1:]:
                product = product * size
            x = tf.reshape(x, tf.stack(shape + [product]))
        k = self.k
        if isinstance(k, Node):
            k = tf.cast(ctx.value(k), tf.int32)
            if self.plan.k_dim.size is None:
                ctx.define_lens(self.plan.k_dim, k, size=k)
        values, indices = tf.nn.top_k(x, k, sorted=self.sorted)
        for name, size in reversed(list(zip(self._part_names(len(sizes)), sizes))):
            ctx.set_sub_output(name, indices % size if len(sizes) > 1 else indices)
            indices = indices // size
        return values
