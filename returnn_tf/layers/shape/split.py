"""`split`: an axis cut into parts, each reachable as a layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Shape
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class SplitPlan(LayerPlan):
    """The plan of `SplitLayer`.

    :param split_axis: the axis that is cut
    :param parts: the dims of the parts
    """

    split_axis: int
    parts: Sequence[Dim]


@register_layer("split")
class SplitLayer(ConcatInputLayer, Planned[SplitPlan]):
    """Cuts a static axis into parts, which are the layers ``<name>/0``, ``<name>/1``, ...; the output is the source.

    Lengths: unchanged.

    Example::

        network = {
            "s": {"class": "split", "axis": "F", "size_splits": [1, 3], "from": "data"},
            "output": {"class": "copy", "from": ["s/1", "s/0"]}}
    """

    axis: Optional[AxisOption] = option(None, help="the axis to cut (default: the feature axis)")
    num_splits: Optional[int] = option(None, help="number of parts of equal size")
    size_splits: Optional[Shape] = option(None, help="sizes of the parts")
    out_dims: Optional[list[Dim]] = option(None, help="dims of the parts")

    def template(self, ctx: PlanContext) -> SplitPlan:
        """Return the template of the source, and declare the parts."""
        data = self.input_template(ctx)
        axis = ctx.axis(data, "F" if self.axis is None else self.axis)
        split_axis = axis
        size = ctx.need_static(data.dims[axis], "the axis to split")
        parts = self._parts(ctx, data, axis, size)
        if sum(ctx.need_static(d, "a part") for d in parts) != size:
            raise ctx.error(
                "the parts %s sum to %d, but the axis has %s."
                % ([d.size for d in parts], sum(d.size or 0 for d in parts), data.dims[axis])
            )
        for i, dim in enumerate(parts):
            ctx.sub_output(str(i), data.with_dim(axis, dim))
        return SplitPlan(data, split_axis, parts)

    def _parts(self, ctx: PlanContext, data: Data, axis: int, size: int) -> list[Dim]:
        given = [o for o in (self.num_splits, self.size_splits, self.out_dims) if o is not None]
        if not given or (self.num_splits is not None and self.size_splits is not None):
            raise ctx.error("give one of num_splits, size_splits, out_dims.")
        if self.out_dims is not None:
            count = len(self.size_splits) if self.size_splits is not None else self.num_splits
            if count not in (None, len(self.out_dims)):
                raise ctx.error("out_dims has %d dims, but there are %d parts." % (len(self.out_dims), count))
        if self.size_splits is not None:
            sizes = list(self.size_splits)
        elif self.num_splits is not None:
            if self.num_splits < 1 or size % self.num_splits:
                raise ctx.error("the axis %s can't be cut into %d equal parts." % (data.dims[axis], self.num_splits))
            sizes = [size // self.num_splits] * self.num_splits
        else:
            sizes = self._sizes_of_dims(ctx, data, axis, size)
        is_feature = axis == data.feature_axis
        dims = [ctx.new_feature(n) if is_feature else ctx.new_spatial(n, "part") for n in sizes]
        return dims if self.out_dims is None else [ctx.bind(o, d) for o, d in zip(self.out_dims, dims)]

    def _sizes_of_dims(self, ctx: PlanContext, data: Data, axis: int, size: int) -> list[int]:
        assert self.out_dims is not None
        sizes = [d.size for d in self.out_dims]
        if None in sizes:
            rest = [i for i, n in enumerate(sizes) if n is None]
            if len(rest) > 1:
                raise ctx.error("out_dims: only one part of %s may have an unknown size." % data.dims[axis])
            sizes[rest[0]] = size - sum(n for n in sizes if n is not None)
        return [n for n in sizes if n is not None]

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one split op."""
        x = self.emit_input(ctx)
        parts = tf.split(x, [d.size for d in self.plan.parts], axis=self.plan.split_axis)
        for i, part in enumerate(parts):
            ctx.set_sub_output(str(i), part)
        return x
