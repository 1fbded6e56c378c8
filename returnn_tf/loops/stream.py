"""A loop over frames in a graph that computes sequences block by block: its values go on from block to block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returnn_tf.config import ConfigError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.node import Node
from returnn_tf.loops.nodes import StepIndexLayer
from returnn_tf.loops.plan import LoopPlan
from returnn_tf.ops.frames.shape import expand_at
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


class LoopStream:
    """The values that a loop carries from step to step, in such a graph; elsewhere it changes nothing.

    :param ctx: of the node that runs the loop
    :raises ConfigError: it searches, or one of its layers can't go on from block to block
    """

    def __init__(self, loop: LoopPlan, ctx: EmitContext) -> None:
        self._loop, self._ctx = loop, ctx
        #: Whether the graph computes sequences block by block, and this loop runs over their frames.
        self.active = ctx.continues and loop.ending.end is None and loop.loop_dim.is_dynamic
        if self.active:
            self._check(ctx.node.inner)

    def _check(self, nodes: Sequence[Node]) -> None:
        path = self._loop.path
        if self._loop.choices:
            raise ConfigError("Layer %r: a search can't go on from block to block of frames. Export its scores." % path)
        for node in nodes:
            if isinstance(node.layer, StepIndexLayer):
                raise ConfigError("%r counts the steps of a call, not those of all blocks of frames." % node.path)
            if node.layer.history_grows and not node.layer.carries_history():
                raise ConfigError(
                    "Layer %r (class %r) refers to all steps so far, so it can't go on from block to block of frames."
                    % (node.path, node.layer.class_name)
                )

    def _carried(self) -> list[tuple[Node, str, Data, bool]]:
        """Return (layer, name of the value, template, whether the stream carries it on) for all that the loop carries.

        What a layer declares to keep from batch to batch is carried on by that, and a history by its layer.
        """
        prevs = [(of, "prev", prev.output, True) for prev, of, _ in self._loop.prevs]
        states = [
            (node, node.layer.state_name(key), data, key not in node.kept and not node.layer.history_grows)
            for node in self._ctx.node.inner
            for key, (data, _) in node.loop_states.items()
        ]
        return prevs + states

    def enter(self, first: Sequence[Any]) -> list[Any]:
        """Return the values before the first step of this block.

        :param first: those before the first step of a sequence: of ``prev:``, then states
        """
        if not self.active:
            return list(first)
        found = []
        for value, (node, name, data, mine) in zip(first, self._carried()):
            found.append(self._of(node).state_before(name, data, value) if mine else value)
            found[-1].set_shape(value.shape)
        return found

    def held(self, state: Lowering, before: Sequence[Any], after: Sequence[Any], lens: Any) -> list[Any]:
        """Return the values after a step: behind the end of a sequence they stay as they are.

        :param state: of the step
        :param lens: int32 [batch] or scalar: the number of steps
        """
        if not self.active:
            return list(after)
        found = []
        for old, new, (_, _, data, mine) in zip(before, after, self._carried()):
            goes_on = state.loop_index < lens
            if goes_on.shape.rank and data.batch_axis is not None:
                goes_on = expand_at(goes_on, [axis for axis in range(data.rank) if axis != data.batch_axis])
            found.append(tf.where(goes_on, new, old) if mine else new)
        return found

    def leave(self, last: Sequence[Any]) -> None:
        """Pass on the values after the last step."""
        for value, (node, name, data, mine) in zip(last, self._carried() if self.active else ()):
            if mine:
                self._of(node).state_after(name, data, value)

    def _of(self, node: Node) -> EmitContext:
        return EmitContext(node, self._ctx.lowering)
