"""`pad`: entries added at the borders of axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxesOption, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Amounts, Dims, Number
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.frames.pad import MODES, pad_axis, pad_sequences
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data, Dim


@dataclasses.dataclass(frozen=True, eq=False)
class PadPlan(LayerPlan):
    """The plan of `PadLayer`.

    :param padded: the axes with padding
    :param amounts: the entries to add in front and behind, for each of these axes
    """

    padded: Sequence[int]
    amounts: Sequence[tuple[int, int]]


@register_layer("pad")
class PadLayer(ConcatInputLayer, Planned[PadPlan]):
    """Adds entries in front of and after axes: a constant, or by mode those next to the border.

    In a dynamic axis, the right padding directly follows the last frame of every sequence (since behavior version 21,
    or with handle_dynamic_dims), before that it is at the end of the padded array.
    Lengths: plus both paddings.

    Example::

        network = {"output": {"class": "pad", "axes": "T", "padding": (1, 2), "value": 3.0, "from": "data"}}
    """

    joins_features = True
    axes: AxesOption = option(help="the axes")
    padding: Amounts = option(
        help="number of entries on each side: an int, (left, right), or a list of pairs, one per axis"
    )
    out_dims: Optional[Dims] = option(None, help="the new dims, one per axis")
    handle_dynamic_dims: Optional[bool] = option(None, help="pad at the end of every sequence, not of the array")
    value: Number = option(0, help="padding value in mode 'constant'")
    mode: str = option("constant", help="constant, reflect, symmetric or replication")

    def template(self, ctx: PlanContext) -> PadPlan:
        """Infer the output: the axes larger."""
        data = out = self.input_template(ctx)
        if self.mode.lower() not in MODES:
            raise ctx.error("unknown mode %r. Use one of: %s." % (self.mode, ", ".join(MODES)))
        padded = self._axes(ctx, data)
        amounts = self._amounts(ctx, len(padded))
        declared = self.out_dims
        if declared is not None and not isinstance(declared, (list, tuple)):
            declared = [declared]
        if declared is not None and len(declared) != len(padded):
            raise ctx.error("out_dims has %d dims for %d axes. Give one for each." % (len(declared), len(padded)))
        for i, (axis, (left, right)) in enumerate(zip(padded, amounts)):
            dim = data.dims[axis]
            if dim.is_batch:
                raise ctx.error("the batch axis can't be padded.")
            self._check_border(ctx, dim, max(left, right))
            dim = ctx.bind(declared[i], dim + (left + right)) if declared is not None else dim + (left + right)
            out = out.with_dim(axis, dim)
        return PadPlan(out, padded, amounts)

    def _axes(self, ctx: PlanContext, data: Data) -> list[int]:
        if not isinstance(self.axes, (list, tuple)):
            return ctx.axes(data, self.axes)
        return ctx.each_axis(data, self.axes)

    def _amounts(self, ctx: PlanContext, count: int) -> list[tuple[int, int]]:
        given = self.padding
        if isinstance(given, int):
            pairs: list[Any] = [(given, given)] * count
        elif len(given) == 2 and all(isinstance(n, (int, Dim)) for n in given):
            pairs = [given] * count
        else:
            pairs = [(n, n) if isinstance(n, (int, Dim)) else n for n in given]
        sizes = [[ctx.need_static(n, "padding") if isinstance(n, Dim) else n for n in pair] for pair in pairs]
        if len(sizes) != count or any(len(p) != 2 or min(p) < 0 for p in sizes):
            raise ctx.error(
                "padding must be an int, a pair (left, right), or a list of such pairs for the %d axes, got %r."
                % (count, given)
            )
        return [(left, right) for left, right in sizes]

    def _check_border(self, ctx: PlanContext, dim: Dim, amount: int) -> None:
        limit = {"reflect": -1, "symmetric": 0}.get(self.mode.lower())
        if limit is not None and dim.size is not None and amount > dim.size + limit:
            raise ctx.error(
                "mode %r can add at most %d entries to the axis %s, not %d. Use 'replication' or 'constant'."
                % (self.mode, dim.size + limit, dim, amount)
            )

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one pad or gather per axis."""
        x = self.emit_input(ctx)
        by_sequence = ctx.behavior_version >= 21 if self.handle_dynamic_dims is None else self.handle_dynamic_dims
        mode = self.mode.lower()
        for axis, (left, right) in zip(self.plan.padded, self.plan.amounts):
            if not (left or right):
                continue
            dim = self.input.dims[axis]
            if by_sequence and right and dim.is_dynamic() and ctx.lens(dim).shape.rank == 1:
                front = [self.input.batch_axis, axis]
                order: list[Any] = front + [a for a in range(self.input.rank) if a not in front]
                x = pad_sequences(transpose(x, order), ctx.lens(dim), left, right, mode=mode, value=self.value)
                x = transpose(x, [order.index(a) for a in range(self.input.rank)])
            else:
                x = pad_axis(x, axis, left, right, mode=mode, value=self.value)
        return x
