"""The side effects of a graph in sessions, where nothing runs unless it is asked for: `post_control_dependencies`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from returnn_tf.export.meta import names
from returnn_tf.export.meta.states import States
from returnn_tf.util.lazy_tf import tf

_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatter")


class SideEffects:
    """The assignments that the layers of a graph have made: running statistics, states of random generators, ...

    Checks and prints of values are no part of it: they run with what they check.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.ops: list[Any] = []

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the assignments that are made within the context."""
        before = len(self._graph.get_operations())
        yield
        self.ops += assignments(self._graph.get_operations()[before:])

    def finish(self, states: States, *, in_training: bool) -> None:
        """Add the op with all side effects and the collection of updates.

        Decoders run the updates of a graph for inference after each word, so that they are the states alone there; in
        training they are all assignments.
        """
        for op in [*(self.ops if in_training else []), *states.updates]:
            self._graph.add_to_collection(names.UPDATE_OPS, op)
        with tf.control_dependencies([*self.ops, *states.updates]):
            tf.no_op(name=names.SIDE_EFFECTS)


def assignments(ops: Iterable[Any]) -> list[Any]:
    """Return the ops that set variables."""
    return [op for op in ops if op.type.startswith(_ASSIGNMENTS)]
