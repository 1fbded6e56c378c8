"""The values that a loop carries from step to step: those of ``prev:``, and the states of layers.

The states that layers keep from batch to batch outlive the loop, and in a graph that computes sequences block by block
all carried values do. Such values stay as they are after the end of a sequence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Optional, cast

from returnn_tf.config.errors import LoopError
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.loops.hypotheses import InPlace
from returnn_tf.loops.nodes import StepIndexLayer
from returnn_tf.loops.outputs import batch_of_step, check_follows_hypotheses
from returnn_tf.loops.plan import LoopPlan, PreviousValue
from returnn_tf.loops.step import StepEmitter
from returnn_tf.ops.frames.shape import expand_at
from returnn_tf.tensor import Beam, Data
from returnn_tf.util.lazy_tf import tf


def state_keys(nodes: Iterable[Node]) -> list[tuple[Node, str]]:
    """Return the states that layers carry from step to step."""
    return [(node, key) for node in nodes for key in node.loop_states]


def first_values(prevs: Iterable[PreviousValue], keys: Iterable[tuple[Node, str]], ctx: EmitContext) -> dict[Any, Any]:
    """Return the values for the first step: those of ``prev:`` by their nodes, and states by their keys.

    :param keys: see `state_keys`
    :param ctx: of the node that runs the loop
    """
    values: dict[Any, Any] = {}
    for prev in prevs:
        first = prev.initial.emit(EmitContext(prev.node, ctx.lowering), prev.node.output)
        values[prev.node] = _shaped(first, prev.node.output)
    for node, key in keys:
        data, start = node.loop_states[key]
        values[node, key] = _shaped(start(EmitContext(node, ctx.lowering)), data)
    return values


def _shaped(x: Any, data: Data) -> Any:
    """Return the tensor with all sizes that its template knows."""
    if not isinstance(x, InPlace):
        x.set_shape(data.static_shape)
    return x


@dataclasses.dataclass(frozen=True)
class _Carried:
    """One value that a loop carries.

    :param key: where the step reads it: a node of ``prev:``, or (layer, key of a state)
    :param node: the layer that it belongs to
    :param name: within the layer
    :param data: its template
    :param held: whether it stays as it is after the end of a sequence
    :param in_stream: whether the next block of frames begins with it
    """

    key: Any
    node: Node
    name: str
    data: Data
    held: bool
    in_stream: bool


class CarriedValues:
    """The carried values of one emission of a loop.

    :param ctx: of the node that runs the loop
    :raises ConfigError: sequences come in blocks, but the loop searches or one of its layers can't go on
    """

    def __init__(self, loop: LoopPlan, ctx: EmitContext) -> None:
        self._loop, self._ctx, self._nodes = loop, ctx, ctx.node.inner
        #: Whether the graph computes sequences block by block, and this loop runs over their frames.
        self.in_stream = ctx.continues and loop.ending.end is None and loop.loop_dim.is_dynamic()
        if self.in_stream:
            self._check_stream()
        self._states = state_keys(self._nodes)
        self._carried = [self._prev(prev) for prev in loop.prevs] + [self._state(*key) for key in self._states]
        for of in self._carried:
            batch = batch_of_step(ctx, of.data)
            if loop.search is not None:
                check_follows_hypotheses(ctx, of.node, of.data)
            if batch is not None and batch.expr is None:
                raise LoopError(
                    "Layer %r is carried from step to step as %s, but the size of %s is not known before the first "
                    "step. Split it in the loop again, e.g. by unflatten_batch, before it is used by 'prev:'."
                    % (of.node.path, of.data, batch)
                )

    def _check_stream(self) -> None:
        if self._loop.search is not None and any(dep.output.beam is not None for dep in self._ctx.node.deps):
            raise LoopError(
                "Layer %r: a search over the hypotheses of another one can't go on from block to block of frames."
                % self._loop.path
            )
        for node in self._nodes:
            if isinstance(node.layer, StepIndexLayer):
                raise LoopError("%r counts the steps of a call, not those of all blocks of frames." % node.path)
            if node.layer.history_grows and (self._loop.search is not None or not node.layer.carries_history()):
                raise LoopError(
                    "Layer %r (class %r) refers to all steps so far, so it can't go on from block to block of frames."
                    % (node.path, node.layer.class_name)
                )

    def _prev(self, prev: PreviousValue) -> _Carried:
        return _Carried(prev.node, prev.of, "prev", self._in_beam(prev.node.output), self.in_stream, self.in_stream)

    def _state(self, node: Node, key: str) -> _Carried:
        """Describe a state. A layer with a history carries it on by itself, also behind the end of a sequence."""
        layer = node.layer
        is_kept = key in node.kept
        in_stream = self.in_stream and not is_kept and not layer.history_grows
        held = in_stream or (is_kept and not layer.history_grows)
        data = self._in_beam(node.loop_states[key][0])
        return _Carried((node, key), node, layer.state_name(key), data, held, in_stream)

    def _in_beam(self, data: Data) -> Data:
        """Return the template of a value of the step as it is carried: of a search, for all hypotheses."""
        loop = self._loop
        return data if loop.search is None else data.replace(beam=Beam(loop.beam_size, loop.path))

    @property
    def keys(self) -> list[Any]:
        """Return the keys by which a step reads the values, in their order."""
        return [value.key for value in self._carried]

    def first(self, inner: EmitContext) -> list[Any]:
        """Emit the values that the first step reads.

        :param inner: of the node that runs the loop, with the values as the loop sees them
        """
        found = []
        for of, first in zip(self._carried, first_values(self._loop.prevs, self._states, inner).values()):
            value = self._of(of.node).state_before(of.name, of.data, first) if of.in_stream else first
            if of.in_stream:
                value.set_shape(first.shape)
            found.append(value)
        return found

    def after_step(self, step: StepEmitter, lens: Optional[Any]) -> list[Any]:
        """Return the values for the next step.

        :param lens: int32 [batch] or scalar: the number of steps if it is known before the loop
        """
        return [self._held(of, step, lens) if of.held else step.carried(of.key) for of in self._carried]

    def _held(self, of: _Carried, step: StepEmitter, lens: Optional[Any]) -> Any:
        lowering = step.lowering
        ended = EmitContext(of.node, lowering).ended
        goes_on = tf.logical_not(ended) if lens is None else lowering.loop.index < lens
        if goes_on.shape.rank and of.data.batch_axis is not None:
            goes_on = expand_at(goes_on, [axis for axis in range(of.data.rank) if axis != of.data.batch_axis])
        return tf.where(goes_on, step.carried(of.key), lowering.loop.inputs[of.key])

    def keep(self, last: Sequence[Any], lens: Any) -> None:
        """Keep the values that outlive the loop; after a search, the states of the best hypothesis.

        :param last: the values after the last step
        :param lens: int32 [batch] or scalar: the number of steps of each sequence
        """
        by_key = dict(zip(self.keys, last))
        for node in self._nodes:
            ctx, layer = self._of(node), cast(Any, node.layer)
            kept = set(node.kept)
            if layer.history_grows and self.in_stream and layer.carries_history():
                kept = set(node.loop_states)
            values = {
                key: self._of_best(by_key[node, key], data.batch_axis)
                for key, (data, _) in node.loop_states.items()
                if key in kept
            }
            if values and layer.history_grows:
                layer.keep_history(ctx, values, lens)
                continue
            for key, value in values.items():
                ctx.keep(key, value)
        for of in self._carried:
            if of.in_stream:
                self._of(of.node).state_after(of.name, of.data, by_key[of.key])

    def _of_best(self, value: Any, axis: Optional[int]) -> Any:
        beam = self._loop.beam_size
        return (
            value
            if beam == 1 or axis is None
            else tf.gather(value, tf.range(0, tf.shape(value)[axis], beam), axis=axis)
        )

    def _of(self, node: Node) -> EmitContext:
        return EmitContext(node, self._ctx.lowering)
