"""The value that a layer holds while a mask is false: before the first frame, and from block to block of a stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.graph.block_end import at_block_end
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.masked.unit_on_zeros import UnitOnZeros
from returnn_tf.layers.nested.subnetwork import SubnetworkLayer
from returnn_tf.layers.shared.initial_value import INITIAL_KEYWORDS, InitialValue, plan_initial_value
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf

#: Values of the option that do not name a layer.
KEYWORDS = (*INITIAL_KEYWORDS, "apply(0)")


@dataclasses.dataclass(frozen=True)
class HeldInitial:
    """The initial output: exactly one of a value, the initial state of a layer, and a unit on zeros.

    :param state_of: a layer that defines an initial value
    """

    value: Optional[InitialValue] = None
    state_of: Optional[Node] = None
    unit: Optional[UnitOnZeros] = None

    def emit(self, ctx: EmitContext, data: Data) -> Any:
        """Emit a tensor that broadcasts against the layout of ``data``, in its dtype."""
        if self.value is not None:
            return self.value.emit(ctx, data)
        if self.unit is not None:
            return tf.cast(self.unit.emit(ctx, data), data.dtype)
        assert self.state_of is not None
        layer = self.state_of.layer
        value = layer.initial_output_value(EmitContext(self.state_of, ctx.lowering))
        return to_layout(value, layer.initial_output_template(), data)


def plan_held_initial(
    ctx: PlanContext,
    given: Any,
    data: Data,
    inner: Optional[Node],
    unit: Any,
    on_zeros: Optional[UnitOnZeros] = None,
) -> HeldInitial:
    """Plan the initial output of a layer that holds the value of an inner one.

    :param given: the option, with layers as nodes; None: the initial output of the inner layer, else zeros
    :param data: template of one step
    :param inner: the planned inner layer
    :param unit: its layer dict
    :param on_zeros: for "apply(0)"
    :raises ConfigError: an unknown form
    """
    if given is None:
        given = _of_unit(unit)
        state_of = _recurrent(inner)
        if given is None and state_of is not None:
            return HeldInitial(state_of=state_of)
    if given == "apply(0)" and on_zeros is not None:
        return HeldInitial(unit=on_zeros)
    value = plan_initial_value(ctx, given, data)
    if value is not None:
        return HeldInitial(value)
    last = ", 'apply(0)'" if on_zeros is not None else ""
    raise ctx.error(
        "initial_output must be a number, 'zeros', 'ones', 'var'%s or a layer here, not %r." % (last, given)
    )


def _of_unit(unit: Any) -> Any:
    """Return the initial output that the option of the inner layer gives."""
    while isinstance(unit, Mapping):
        given = unit.get("initial_output")
        if given is not None:
            return given
        unit = (unit.get("subnetwork") or {}).get("output")
    return None


def _recurrent(node: Optional[Node]) -> Optional[Node]:
    """Return the inner layer if it defines an initial value: recurrent or held under a mask."""
    while node is not None and isinstance(node.layer, SubnetworkLayer):
        node = node.passes_on  # None while the layers of a loop are still guessed
    return node if node is not None and node.layer.gives_initial_output() else None


def held_in_stream(ctx: EmitContext, data: Data, frames: Dim, initial: Any) -> Any:
    """Return the value that is held before the first frame of this batch; in a stream, that after the last block.

    :param initial: before the first frame of a sequence; broadcasts against ``data``
    """
    axis = data.dims.index(frames)
    if not ctx.continues:
        return initial
    frame = data.without_axes([axis])
    first = tf.squeeze(initial, axis) if initial.shape.rank else initial
    first = tf.broadcast_to(tf.cast(first, data.dtype), tf.stack(ctx.shape(frame)))
    return tf.expand_dims(ctx.state_before("held", frame, first), axis)


def pass_on_held(ctx: EmitContext, data: Data, frames: Dim, initial: Any, y: Any) -> None:
    """Pass the value that is held after the last frame on to the next block of a stream, see `held_in_stream`."""
    axis = data.dims.index(frames)
    if ctx.continues:
        first = tf.squeeze(initial, axis)
        ctx.state_after("held", data.without_axes([axis]), at_block_end(ctx, data, axis, first, y))
