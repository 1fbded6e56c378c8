"""States that layers of a loop keep for the next batch: that at the end of each sequence, of the best hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, cast

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.node import Node
from returnn_tf.loops.plan import LoopPlan
from returnn_tf.ops.frames.shape import expand_at
from returnn_tf.util.lazy_tf import tf


def hold_after_end(loop: LoopPlan, state: Lowering, nodes: Sequence[Node], lens: Any) -> None:
    """Let the kept states of a step stay as they are after the end of a sequence.

    :param lens: int32 [batch] or scalar: the number of steps if it is known before the loop, else None
    """
    for node in nodes:
        for key in node.kept:
            if node.layer.history_grows or key not in node.loop_states:
                continue
            going_on = tf.logical_not(EmitContext(node, state).ended) if lens is None else state.loop_index < lens
            data = node.loop_states[key][0]
            if going_on.shape.rank and data.batch_axis is not None:
                going_on = expand_at(going_on, [axis for axis in range(data.rank) if axis != data.batch_axis])
            state.next_states[node, key] = tf.where(
                going_on, state.next_states[node, key], state.loop_inputs[node, key]
            )


def keep_states(
    ctx: EmitContext, nodes: Sequence[Node], states: Sequence[Any], beam: int, lens: Any, *, in_stream: bool
) -> None:
    """Keep the last states of layers for the next batch; after a search, those of the best hypothesis.

    :param ctx: of the loop
    :param states: the values of all states of the nodes after the last step
    :param lens: int32 [batch] or scalar: the number of steps of each sequence
    :param in_stream: whether the loop goes on from block to block of frames
    """
    keys = [(node, key) for node in nodes for key in node.loop_states]
    by_key = dict(zip(keys, states))
    for node in nodes:
        inner, layer = EmitContext(node, ctx.lowering), cast(Any, node.layer)
        carried = set(node.kept)
        if layer.history_grows and in_stream and layer.carries_history():
            carried = set(node.loop_states)
        last = {key: _of_best(by_key[node, key], data.batch_axis, beam) for key, (data, _) in node.loop_states.items()
                if key in carried}  # fmt: skip
        if last and layer.history_grows:
            layer.keep_history(inner, last, lens)
            continue
        for key, value in last.items():
            inner.keep(key, value)


def _of_best(value: Any, axis: Optional[int], beam: int) -> Any:
    if beam == 1 or axis is None:
        return value
    return tf.gather(value, tf.range(0, tf.shape(value)[axis], beam), axis=axis)
