"""The plan of a loop: what its steps read, carry and write, and when it ends. It never changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, Optional, Union

from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.ops.frames.shape import to_layout
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class InitialOutput:
    """The value of ``prev:x`` in the first step.

    :param constant: a number for all entries
    :param param: node and name of the parameter for "var"
    :param node: a layer
    :param state: a function of the `EmitContext` that emits it
    """

    constant: Union[bool, int, float, str] = 0
    param: Optional[tuple[Node, str]] = None
    node: Optional[Node] = None
    state: Optional[Callable[[EmitContext], Any]] = None

    @property
    def is_computed(self) -> bool:
        """Return whether layers of the loop have to be computed for it."""
        return self.state is not None

    def emit(self, ctx: EmitContext, data: Data) -> Any:
        """Emit a tensor in the layout of ``data``."""
        shape = ctx.shape(data)
        if self.state is not None:
            value = self.state(ctx)
        elif self.node is not None:
            value = to_layout(ctx.value(self.node), self.node.output, data)
        elif self.param is not None:
            owner, name = self.param
            flat = tf.convert_to_tensor(ctx.lowering.params.variables[owner.params[name].name])
            value = tf.reshape(flat, [-1 if i == data.feature_axis else 1 for i in range(data.rank)])
        else:
            value = tf.cast(self.constant, data.dtype)
        return tf.broadcast_to(tf.cast(value, data.dtype), tf.stack(shape) if shape else [])


@dataclasses.dataclass(frozen=True, eq=False)
class PreviousValue:
    """The value of a layer in the previous step.

    :param node: ``prev:x`` in the step
    :param of: x
    :param initial: the value in the first step
    :param state_of: the layer whose hidden state of the previous step can be asked for, too; None: x has none
    """

    node: Node
    of: Node
    initial: InitialOutput
    state_of: Optional[Node] = None

    def of_step(self, ctx: EmitContext, x: Any) -> Any:
        """Return the value that the next step reads: broadcast if the initial one has more axes.

        :param ctx: of ``prev:x`` in the step
        :param x: the value of the layer in the step
        """
        step, data = self.of.output, self.node.output
        if data.rank == step.rank:
            return x
        return tf.broadcast_to(to_layout(x, step, data), tf.stack(ctx.shape(data)))


@dataclasses.dataclass(frozen=True, eq=False)
class Ending:
    """The end condition of a loop.

    :param end: node of the step with a bool per sequence, or None: the number of steps is known
    :param include_eos: whether the step in which ``end`` becomes true counts
    :param max_steps: function of the `EmitContext` that returns the maximum number of steps, or None: known otherwise
    :param time_dim: the dim that the loop defines, or None
    """

    end: Optional[Node]
    include_eos: bool
    max_steps: Optional[Callable[[EmitContext], Any]]
    time_dim: Optional[Dim]


@dataclasses.dataclass(frozen=True, eq=False)
class LoopSearch:
    """The beam search of a loop.

    :param choices: in the order of a step
    :param beam_size: number of hypotheses at the end of a step
    :param keeps_beam: whether it is the same at all times
    :param independent_of_batch: whether each sequence is searched as if it were alone
    :param stops_early: whether a sequence is done when nothing can beat its best ended hypothesis
    """

    choices: tuple[Node, ...]
    beam_size: int
    keeps_beam: bool
    independent_of_batch: bool
    stops_early: bool


@dataclasses.dataclass(frozen=True, eq=False)
class LoopPlan:
    """A loop: its inputs, the values it carries from step to step, and its end.

    :param loop_dim: the step axis
    :param path: of the `rec` layer
    :param prevs: what steps read of the previous one
    :param slices: (value for all steps, node for its slice in the step)
    :param search: None without search
    :param zones: layer of the step network -> (where it is computed, why it is in the loop); for reports
    :param checkpoint_steps: whether the backward pass recomputes the steps
    :param swap_memory: the same, if there is a GPU
    :param back_prop: whether the backward pass goes through the loop
    :param source_dim: the axis of the source, if the loop finds its end itself and may not run past that of the source
    :param length_deps: nodes outside that the number of steps depends on, besides the inputs
    :param constrained: (layer of the step, option): the values that it constrains are wanted for all steps too
    """

    loop_dim: Dim
    path: str
    ending: Ending
    prevs: tuple[PreviousValue, ...]
    slices: tuple[tuple[Node, Node], ...]
    search: Optional[LoopSearch]
    zones: Mapping[str, tuple[str, str]]
    checkpoint_steps: bool = False
    swap_memory: bool = False
    back_prop: bool = True
    source_dim: Optional[Dim] = None
    length_deps: tuple[Node, ...] = ()
    constrained: tuple[tuple[Node, str], ...] = ()

    @property
    def beam_size(self) -> int:
        """Return the number of hypotheses at the end of a step; 1 without search."""
        return 1 if self.search is None else self.search.beam_size

    @property
    def keeps_beam(self) -> bool:
        """Return whether the number of hypotheses is the same at all times."""
        return self.search is None or self.search.keeps_beam

    @property
    def independent_of_batch(self) -> bool:
        """Return whether each sequence is searched as if it were alone."""
        return self.search is not None and self.search.independent_of_batch

    @property
    def recomputes(self) -> bool:
        """Return whether the backward pass recomputes the steps.

        Loops in TensorFlow 2 cannot swap to host memory; recomputing saves GPU memory as well.
        """
        return self.checkpoint_steps or (self.swap_memory and bool(tf.config.list_physical_devices("GPU")))
