"""`cumsum`: sums of all frames so far."""

from __future__ import annotations

from typing import Any, Union

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.loop_axis import frames_of, with_frames
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@register_layer("cumsum")
class CumsumLayer(ConcatInputLayer):
    """``y[t] = sum of x[s] over all s <= t`` (with ``reverse``: s >= t) along one axis.

    There is no mask: with ``reverse``, frames after the end of a sequence count. Inside of a loop, and without a time
    axis, it is the sum over all steps so far. No parameters. Lengths: unchanged.

    Example::

        network = {"output": {"class": "cumsum", "axis": "T", "from": "data"}}
    """

    computes_all_steps = True
    axis: Axis = option("T", help="the axis to sum along")
    reverse: bool = option(False, help="start from the end of the array")
    additional_left_summand_per_element: Union[None, int, float] = option(
        None, help="value to add to every element before the summation"
    )

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source."""
        data = self.input_template(ctx)
        self._frames, self._axis = frames_of(ctx, data, self.axis)
        if self._axis is None:
            if self.reverse:
                raise ctx.error("reverse needs future steps, which a loop does not know yet.")
            ctx.loop_state("sum", data, lambda emit: tf.zeros(tf.stack(emit.shape(data)), data.dtype))
        return self._frames

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one op."""
        x = with_frames(ctx, self.emit_input(ctx), self.input, self._frames)
        if self.additional_left_summand_per_element is not None:
            x = tf.cast(self.additional_left_summand_per_element, x.dtype) + x
        if self._axis is None:
            total = ctx.loop_state("sum") + x
            ctx.set_loop_state("sum", total)
            return total
        return tf.cumsum(x, axis=self._axis, reverse=self.reverse)
