"""`merge_dims`: several axes merged into one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxesOption, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.axis_marks import index_of, product
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.shape import merge_axes, transpose
from returnn_tf.tensor import Data, Dim, DimKind


@dataclasses.dataclass(frozen=True, eq=False)
class MergeDimsPlan(LayerPlan):
    """The plan of `MergeDimsLayer`.

    :param merged: the merged axes, in their order
    :param perm: order of the axes of the input with the merged ones next to each other
    :param position: of the merged axis in the output
    """

    merged: Sequence[int]
    perm: Sequence[int]
    position: int


@register_layer("merge_dims", "combine_dims")
class MergeDimsLayer(ConcatInputLayer, Planned[MergeDimsPlan]):
    """Merges axes: entry ``(i, j)`` of axes with the sizes ``m, n`` becomes entry ``i * n + j``.

    The axes are merged in the order of the list. Before behavior version 6 they are sorted first, batch in front,
    unless keep_order is set. The result is a batch axis if one is merged, else the feature axis if that is merged; it
    takes the place of the feature, batch or time axis, else of the first axis.
    Lengths: multiplied. Frames are not compacted: with two dynamic axes, padding ends up between valid frames.

    Example::

        network = {
            "a": {"class": "split_dims", "axis": "F", "dims": (4, -1), "from": "data"},
            "output": {"class": "merge_dims", "axes": ["dim:4", "F"], "keep_order": True, "from": "a"}}
    """

    only_reshapes = True
    axes: AxesOption = option(help="the axes to merge, e.g. ['B', 'T'] or 'static'")
    keep_order: Optional[bool] = option(None, help="merge in the given order (default since behavior version 6)")

    def template(self, ctx: PlanContext) -> MergeDimsPlan:
        """Infer the output: the merged axis instead of the others."""
        data = self.input_template(ctx)
        merged = self._merged_axes(ctx, data)
        if len(merged) <= 1:
            perm = list(range(data.rank))
            position = merged[0] if merged else 0
            out = self._checked(ctx, data, data.dims[merged[0]] if merged else None, position)
            return MergeDimsPlan(out, merged, perm, position)
        where = self._target_axis(data, merged)
        rest = [a for a in range(data.rank) if a not in merged]
        position = sum(a < where for a in rest)
        perm = rest[:position] + merged + rest[position:]
        dim = self._merged_dim(data, merged)
        dims = [data.dims[a] for a in rest]
        dims.insert(position, dim)
        kept = [-1 if a in merged else a for a in rest[:position] + [-1] + rest[position:]]
        is_feature = data.feature_axis in merged and not dim.is_batch
        is_time = data.time_axis in merged and not dim.is_batch and not is_feature
        out = data.replace(
            dims=tuple(dims),
            feature_axis=position if is_feature else index_of(data.feature_axis, kept),
            time_axis=position if is_time else index_of(data.time_axis, kept),
        )
        out = self._checked(ctx, out.with_time_axis_default(), dim, position)
        return MergeDimsPlan(out, merged, perm, position)

    def _merged_axes(self, ctx: PlanContext, data: Data) -> list[int]:
        axes = ctx.axes(data, self.axes)
        if isinstance(self.axes, (list, tuple)):
            parts = [part for part in self.axes if ctx.has_axis(data, part)]
            named = [axis for found in ctx.each_axes(data, parts) for axis in found]
            twice = next((axis for axis in axes if named.count(axis) > 1), None)
            if twice is not None:
                raise ctx.error("axes names %s of %s twice." % (data.dims[twice], data))
        keep_order = ctx.behavior_version >= 6 if self.keep_order is None else self.keep_order
        if keep_order:
            is_list = isinstance(self.axes, (list, tuple))
            if len(axes) > 1 and not is_list:
                raise ctx.error(
                    "the axes are merged in the given order, but %r defines none for %s. Give a list of "
                    "axes, e.g. ['B', 'T']." % (self.axes, data)
                )
            return axes
        return sorted(axes, key=lambda a: (not data.dims[a].is_batch, a))

    def _target_axis(self, data: Data, merged: list[int]) -> int:
        for axis in (data.feature_axis, data.batch_axis, data.time_axis):
            if axis is not None and axis in merged:
                return axis
        return min(merged)

    def _merged_dim(self, data: Data, merged: list[int]) -> Dim:
        dims = [data.dims[a] for a in merged]
        batch = [d for d in dims if d.is_batch]
        if batch and not dims[0].is_batch:
            # Entries are in another order than in `batch * time`, so it must not be the same dim.
            return Dim(DimKind.BATCH, None, "*".join(str(d) for d in dims))
        dim = product(dims)
        if data.feature_axis in merged and dim.auto and not dim.is_batch:
            dim = dim.as_kind(DimKind.FEATURE)
        return dim

    def _checked(self, ctx: PlanContext, data: Data, dim: Optional[Dim], position: int) -> Data:
        if dim is None:
            return data
        if self.n_out is not None and dim.size not in (None, self.n_out):
            raise ctx.error("n_out is %d, but the merged axis has %s. Omit n_out." % (self.n_out, dim))
        bound = ctx.bind(self.out_dim, dim)
        return data if bound is dim else data.with_dim(position, bound)

    def ignores_padding(self) -> bool:
        """Return whether no frames are merged."""
        return not any(self.input.dims[axis].is_dynamic() for axis in self.plan.merged) and not self.dropout

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a transpose, if the axes are not neighbours in the right order, and a reshape."""
        x = self.emit_input(ctx)
        if len(self.plan.merged) <= 1:
            return x
        x, size = merge_axes(transpose(x, self.plan.perm), self.plan.position, len(self.plan.merged))
        dim = ctx.output.dims[self.plan.position]
        if dim.size is None:
            ctx.define_size(dim, size)
        return x
