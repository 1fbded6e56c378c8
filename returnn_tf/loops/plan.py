"""The parts of a loop, once its step network is planned."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

from returnn_tf.graph.freezing import Freezable, read_only
from returnn_tf.graph.node import Node
from returnn_tf.loops.initial_output import InitialOutput
from returnn_tf.tensor import Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class Ending:
    """The end condition of a loop.

    :param end: node of the step with a bool per sequence, or None: the number of steps is known
    :param include_eos: whether the step in which ``end`` becomes true counts
    :param max_steps: function of the `EmitContext` that returns the maximum number of steps, or None: known otherwise
    :param time_dim: the dim that the loop defines, or None
    """

    end: Optional[Node]
    include_eos: bool
    max_steps: Any
    time_dim: Optional[Dim]


@dataclasses.dataclass(eq=False)
class LoopPlan(Freezable):
    """A loop: its inputs, the values it carries from step to step, and its outputs.

    :param loop_dim: the step axis
    :param path: of the `rec` layer
    :param prevs: (node for ``prev:x`` in the step, node of x, its initial output)
    :param slices: (value for all steps, node for its slice in the step)
    :param choices: in the order of a step; empty without search
    :param zones: layer of the step network -> (where it is computed, why it is in the loop); for reports
    :param checkpoint_steps: whether the backward pass recomputes the steps
    :param swap_memory: the same, if there is a GPU
    :param back_prop: whether the backward pass goes through the loop
    :param source_dim: the axis of the source, if the loop finds its end itself and may not run past that of the source
    :param length_deps: nodes outside that the number of steps depends on, besides the inputs
    :param constrained: (layer of the step, option): the values that it constrains are wanted for all steps too
    :param collected: nodes of the step whose values are wanted for all steps; determined last
    """

    loop_dim: Dim
    path: str
    ending: Ending
    prevs: list[tuple[Node, Node, InitialOutput]]
    slices: list[tuple[Node, Node]]
    choices: list[Node]
    zones: dict[str, tuple[str, str]]
    checkpoint_steps: bool = False
    swap_memory: bool = False
    back_prop: bool = True
    source_dim: Optional[Dim] = None
    length_deps: list[Node] = dataclasses.field(default_factory=list)
    constrained: list[tuple[Node, str]] = dataclasses.field(default_factory=list)
    collected: list[Node] = dataclasses.field(default_factory=list)

    def freeze(self) -> None:
        """Forbid all further changes."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, read_only(getattr(self, field.name)))
        super().freeze()

    @property
    def beam_size(self) -> int:
        """Return the number of hypotheses at the end of a step; 1 without search."""
        return self.choices[-1].layer.beam_size if self.choices else 1  # type: ignore[attr-defined]

    @property
    def written(self) -> list[Node]:
        """Return the nodes whose values a step writes, in this order."""
        return [*self.collected, *(node for node, _ in self.constrained)]

    @property
    def independent_of_batch(self) -> bool:
        """Return whether each sequence is searched as if it were alone."""
        return bool(self.choices) and self.choices[-1].layer.independent_of_batch  # type: ignore[attr-defined]

    @property
    def stops_early(self) -> bool:
        """Return whether a sequence is done when nothing can beat its best ended hypothesis."""
        return bool(self.choices) and self.choices[-1].layer.early_stop  # type: ignore[attr-defined]

    @property
    def recomputes(self) -> bool:
        """Return whether the backward pass recomputes the steps.

        Loops in TensorFlow 2 cannot swap to host memory; recomputing saves GPU memory as well.
        """
        return self.checkpoint_steps or (self.swap_memory and bool(tf.config.list_physical_devices("GPU")))

    @property
    def keeps_beam(self) -> bool:
        """Return whether the number of hypotheses is the same at all times."""
        return all(n.layer.beam_size == self.beam_size for n in self.choices)  # type: ignore[attr-defined]
