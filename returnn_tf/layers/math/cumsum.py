"""`cumsum`: sums of all frames so far."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Union

from returnn_tf.config.options import option
from returnn_tf.graph.block_end import at_block_end
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis, InitialOutput
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.initial_value import INITIAL_KEYWORDS, InitialValue, plan_initial_value
from returnn_tf.layers.shared.loop_axis import frames_of, with_frames
from returnn_tf.layers.shared.numbers import need_numbers
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class CumsumPlan(LayerPlan):
    """The plan of `CumsumLayer`. The output has the axes of the input and that of the steps, if they are inputs.

    :param axis: that of the sum, in the output; None: it is over the steps of a loop
    :param initial: the sum before the first step of a loop
    """

    axis: Optional[int]
    initial: Optional[InitialValue]

    @property
    def step(self) -> Data:
        """The layout of the sum at one position."""
        return self.output if self.axis is None else self.output.without_axes([self.axis])


@register_layer("cumsum")
class CumsumLayer(ConcatInputLayer, Planned[CumsumPlan]):
    """``y[t] = sum of x[s] over all s <= t`` (with ``reverse``: s >= t) along one axis.

    There is no mask: with ``reverse``, frames after the end of a sequence count. Inside of a loop, and without a time
    axis, it is the sum over all steps so far, and ``initial_output`` is added to it. Lengths: unchanged.

    Parameters: with ``initial_output`` "var": ``init_<layer>_var`` [features].

    Example::

        network = {"output": {"class": "cumsum", "axis": "T", "from": "data"}}
    """

    has_memory = True
    computes_all_steps = True
    axis: Axis = option("T", help="the axis to sum along")
    reverse: bool = option(False, help="start from the end of the array")
    additional_left_summand_per_element: Union[None, int, float] = option(
        None, help="value to add to every element before the summation"
    )
    initial_output: InitialOutput = option(
        None,
        help="in a loop: the sum before the first step, also the value of prev: there",
        refs=True,
        keywords=(*INITIAL_KEYWORDS, "apply(0)"),
    )

    def template(self, ctx: PlanContext) -> CumsumPlan:
        """Return the template of the source."""
        data = self.input_template(ctx)
        need_numbers(ctx, data, "a sum")
        frames, axis = frames_of(ctx, data, self.axis)
        initial = self._planned_initial(ctx, frames, axis)
        if axis is None:
            if self.reverse:
                raise ctx.error("reverse needs future steps, which a loop does not know yet.")
            ctx.loop_state("sum", data, self.initial_output_value)
        return CumsumPlan(frames, axis, initial)

    def _planned_initial(self, ctx: PlanContext, frames: Data, axis: Optional[int]) -> Optional[InitialValue]:
        """Plan the sum before the first step of a loop; None if it runs over another axis or outside of loops."""
        if axis is not None and not frames.dims[axis].is_loop:
            return None
        initial = plan_initial_value(ctx, self.initial_output, frames if axis is None else frames.without_axes([axis]))
        if initial is None:
            raise ctx.error(
                "initial_output must be a number, 'zeros', 'ones', 'var' or a layer here, not %r."
                % (self.initial_output,)
            )
        return initial

    def gives_initial_output(self) -> bool:
        """Return whether the sum runs over the steps of a loop."""
        return isinstance(self.node.found, CumsumPlan) and self.plan.initial is not None

    def initial_output_value(self, ctx: EmitContext) -> Any:
        """Return the sum before the first step of a loop."""
        assert self.plan.initial is not None
        data = self.plan.step
        shape = ctx.shape(data)
        return tf.broadcast_to(self.plan.initial.emit(ctx, data), tf.stack(shape) if shape else [])

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one op."""
        frames, axis = self.plan.output, self.plan.axis
        x = with_frames(ctx, self.emit_input(ctx), self.input, frames)
        if self.additional_left_summand_per_element is not None:
            x = tf.cast(self.additional_left_summand_per_element, x.dtype) + x
        if axis is None:
            total = ctx.loop_state("sum") + x
            ctx.set_loop_state("sum", total)
            return total
        total = tf.cumsum(x, axis=axis, reverse=self.reverse)
        if self.plan.initial is not None and self.initial_output is not None:
            total += tf.expand_dims(self.initial_output_value(ctx), axis)
        if ctx.continues and frames.dims[axis].is_dynamic() and not self.reverse:
            frame = frames.without_axes([axis])
            before = ctx.state_before("sum", frame, tf.zeros(tf.stack(ctx.shape(frame)), x.dtype))
            total += tf.expand_dims(before, axis)
            ctx.state_after("sum", frame, at_block_end(ctx, frames, axis, before, total))
        return total
