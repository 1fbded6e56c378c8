"""`transpose`, `swap_axes`: permutations of axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import AxisOrder
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.axis_marks import with_feature_default
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data


@dataclasses.dataclass(frozen=True, eq=False)
class TransposePlan(LayerPlan):
    """The plan of `TransposeLayer`.

    :param order: of the axes of the input in the output
    """

    order: Sequence[int]


@register_layer("transpose")
class TransposeLayer(ConcatInputLayer, Planned[TransposePlan]):
    """The axes in another order; time and feature stay what they are.

    ``perm`` is the list of all axes in the new order, or a dict from new position to axis; axes that the dict does not
    name keep their order.
    Lengths: unchanged.

    Example::

        network = {"output": {"class": "transpose", "perm": {"T": "F", "F": "T"}, "from": "data"}}
    """

    perm: AxisOrder = option(help="all axes in the new order, or {position: axis}")

    def template(self, ctx: PlanContext) -> TransposePlan:
        """Infer the output: the axes in the new order."""
        data = self.input_template(ctx)
        order = self._order(ctx, data)
        return TransposePlan(data.permuted(order), order)

    def _order(self, ctx: PlanContext, data: Data) -> list[int]:
        if not isinstance(self.perm, Mapping):
            order = ctx.each_axis(data, self.perm)
            if sorted(order) != list(range(data.rank)):
                raise ctx.error("perm must name every axis of %s once, got %s." % (data, [str(d) for d in self.perm]))
            return order
        targets, sources = (ctx.each_axis(data, list(part)) for part in (self.perm.keys(), self.perm.values()))
        given = dict(zip(targets, sources))
        if len(given) < len(self.perm) or len(set(given.values())) < len(given):
            raise ctx.error("perm names an axis of %s twice." % data)
        rest = iter([a for a in range(data.rank) if a not in given.values()])
        return [given[a] if a in given else next(rest) for a in range(data.rank)]

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one transpose, none if the order is kept."""
        return transpose(self.emit_input(ctx), self.plan.order)


@dataclasses.dataclass(frozen=True, eq=False)
class SwapAxesPlan(LayerPlan):
    """The plan of `SwapAxesLayer`.

    :param order: of the axes of the input in the output
    """

    order: Sequence[int]


@register_layer("swap_axes")
class SwapAxesLayer(ConcatInputLayer, Planned[SwapAxesPlan]):
    """Two axes exchanged. The feature axis is then the last static one.

    Lengths: unchanged.

    Example::

        network = {"output": {"class": "swap_axes", "axis1": "T", "axis2": "F", "from": "data"}}
    """

    axis1: AxisOption = option(help="one axis")
    axis2: AxisOption = option(help="the other axis")

    def template(self, ctx: PlanContext) -> SwapAxesPlan:
        """Infer the output: the exchanged order."""
        data = self.input_template(ctx)
        first, second = ctx.each_axis(data, [self.axis1, self.axis2])
        order = list(range(data.rank))
        order[first], order[second] = second, first
        out = data.permuted(order)
        if data.feature_axis is None or data.feature_axis not in (first, second):
            return SwapAxesPlan(out, order)
        static = [a for a, d in enumerate(out.dims) if not d.is_batch and d.size is not None and a != out.time_axis]
        return SwapAxesPlan(with_feature_default(out.replace(feature_axis=static[-1] if static else None)), order)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one transpose."""
        return transpose(self.emit_input(ctx), self.plan.order)
