"""`reshape`: several axes reshaped to several others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.axis_marks import index_of, product, with_feature_default
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.shape import merge_axes, split_axis, transpose
from returnn_tf.tensor import Data, Dim, DimKind


@dataclasses.dataclass(frozen=True, eq=False)
class ReshapePlan(LayerPlan):
    """The plan of `ReshapeLayer`.

    :param merged: the axes that are replaced
    :param position: where the new ones begin
    :param perm: order of the axes of the input with the replaced ones next to each other
    :param outs: the new dims
    """

    merged: Sequence[int]
    position: int
    perm: Sequence[int]
    outs: Sequence[Dim]


@register_layer("reshape")
class ReshapeLayer(ConcatInputLayer, Planned[ReshapePlan]):
    """Reshapes the axes ``in_dims``, made neighbours in this order, to ``out_dims``.

    One of the out_dims may be of unknown size and is inferred. If the feature axis is reshaped, the new one has the
    same dim, if that is among the out_dims; else the same index, if there are as many out_dims as in_dims; else it is
    the last of the out_dims that is a feature dim, or the last static axis.
    Lengths: of an inferred dim, the product of the lengths of the in_dims, divided by the other out_dims.

    Example::

        from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim
        time, s, f = SpatialDim("time"), SpatialDim("s", 5), FeatureDim("f", 4)
        extern_data = {"data": {"dim_tags": [batch_dim, time, s, f]}}
        network = {"output": {"class": "reshape", "in_dims": [s, f], "from": "data",
            "out_dims": [SpatialDim("a", 2), FeatureDim("b", 10)]}}
    """

    in_dims: list[Dim] = option(help="dims of the source")
    out_dims: list[Dim] = option(help="dims of the output that replace them")

    def template(self, ctx: PlanContext) -> ReshapePlan:
        """Infer the output: the new axes in the place of the first of the in_dims."""
        data = self.input_template(ctx)
        merged = ctx.each_axis(data, self.in_dims)
        if not merged:
            raise ctx.error("in_dims must not be empty.")
        rest = [a for a in range(data.rank) if a not in merged]
        position = sum(a < merged[0] for a in rest)
        perm = rest[:position] + merged + rest[position:]
        outs = self._out_dims(ctx, [data.dims[a] for a in merged])
        kept = rest[:position] + [-1] * len(outs) + rest[position:]
        dims = [outs[i - position] if a == -1 else data.dims[a] for i, a in enumerate(kept)]
        time = _same_dim(data.time_axis, data, kept, dims)
        feature = _same_dim(data.feature_axis, data, kept, dims)
        if data.feature_axis in merged and feature is None:
            new = [i for i, a in enumerate(kept) if a == -1 and dims[i].kind is DimKind.FEATURE]
            feature = data.feature_axis if len(kept) == data.rank else new[-1] if new else None
        out = data.replace(dims=tuple(dims), feature_axis=feature, time_axis=time)
        return ReshapePlan(
            with_feature_default(out.with_time_axis_default()), merged=merged, position=position, perm=perm, outs=outs
        )

    def _out_dims(self, ctx: PlanContext, ins: list[Dim]) -> list[Dim]:
        outs = list(self.out_dims)
        dynamic = [d for d in ins if d.size is None]
        open_outs = []
        for i, dim in enumerate(outs):
            if dim.size is None and dim in dynamic:
                dynamic.remove(dim)
            elif dim.size is None:
                open_outs.append(i)
        numbers = [d.size for d in ins if d.size is not None], [d.size for d in outs if d.size is not None]
        have, want = math.prod(numbers[0]), math.prod(numbers[1])
        what = "in_dims [%s] and out_dims [%s]" % (", ".join(map(str, ins)), ", ".join(map(str, outs)))
        if len(open_outs) > 1:
            raise ctx.error("%s: only one dim of unknown size can be inferred." % what)
        if not open_outs:
            if dynamic or have != want:
                raise ctx.error("%s have different numbers of entries. Correct the sizes of the dims." % what)
            return outs
        if not dynamic:
            if have % want:
                raise ctx.error("%s don't match: %d is not a multiple of %d." % (what, have, want))
            size = Dim(outs[open_outs[0]].kind, have // want, "%s:reshaped" % self.node.path, auto=True)
        else:
            size = (product(dynamic) * have).ceildiv_right(want)
        outs[open_outs[0]] = ctx.bind(outs[open_outs[0]], size)
        return outs

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a transpose, if the axes are not neighbours in this order, and a reshape."""
        x = transpose(self.emit_input(ctx), self.plan.perm)
        x, size = merge_axes(x, self.plan.position, len(self.plan.merged))
        known, rest = self._known_sizes(ctx)
        sizes = [size // known if i == rest else ctx.size(d) for i, d in enumerate(self.plan.outs)]
        if rest is not None and self.plan.outs[rest].size is None:
            ctx.define_size(self.plan.outs[rest], sizes[rest])
        return split_axis(x, self.plan.position, sizes)

    def _known_sizes(self, ctx: EmitContext) -> tuple[Any, Optional[int]]:
        """Return (product of the sizes of all other dims, index of the inferred dim or None)."""
        ins = [self.input.dims[a] for a in self.plan.merged]
        rest = next((i for i, d in enumerate(self.plan.outs) if d.size is None and d not in ins), None)
        known: Any = 1
        for i, dim in enumerate(self.plan.outs):
            if i != rest:
                known = known * ctx.size(dim)
        return known, rest


def _same_dim(axis: Optional[int], data: Data, kept: Sequence[int], dims: Sequence[Dim]) -> Optional[int]:
    """Return the index of an axis in the output, or of a new axis with its dim; None if there is none.

    :param axis: of the input
    :param kept: by axis of the output: the axis of the input, or -1 for a new one
    :param dims: of the output
    """
    if axis is None or axis in kept:
        return index_of(axis, kept)
    return next((i for i, a in enumerate(kept) if a == -1 and dims[i] is data.dims[axis]), None)
